/* The script of the stand-in library: what the GPUs shall answer. See script.c. */
#ifndef SCRIPT_H
#define SCRIPT_H

#include <stdbool.h>
#include <stddef.h>

enum { EVERYWHERE = -1, MAX_VALUE = 4096 };

typedef struct {
    long sequence;
    int gpu;
    unsigned long long xid;
} Event;

/* The text of a key: that of the GPU (`3.name`), else that of all of them (`all.name`); with EVERYWHERE that of the key
 * alone. False where there is none. */
bool script_text(int gpu, const char *key, char *out, size_t size);

/* The same as a number, decimal or hexadecimal; `otherwise` where there is none. */
double script_number(int gpu, const char *key, double otherwise);

/* The first event after a sequence number; false where there is none. */
bool script_event_after(long sequence, Event *event);

/* The last sequence number so far; 0 where there is none. */
long script_last_event(void);

void pause_ms(unsigned milliseconds);

#endif
