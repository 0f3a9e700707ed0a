/* A stand-in for NVIDIA's libnvidia-ml.so.1, as far as a monitor of training jobs asks it: the answers are those of a
 * script (script.c), else those of healthy GPUs. It knows the names and structures of the calls as NVIDIA's own Python
 * binding makes them, and has no other part of NVML.
 *
 * In the script, each call of a device has a short name, the second argument of `begin`: `3.error.power 3` makes that
 * call of GPU 3 fail with an error, `3.hang.power 5` makes it take seconds, `hang.all 1` holds every call until that
 * line is gone, `3.lost 1` is a GPU that has fallen off the bus, `crash 1` ends the process. */
#define _GNU_SOURCE
#include "script.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};
enum { MAX_GPUS = 64, MAX_MIGS = 8, POLL_MS = 100, MAX_PROCESSES = 256, XID = 8, EVENT_TYPES = 0x1b };
static const uint64_t GIB = 1ull << 30;

typedef struct {
    int gpu, mig; /* mig: which instance; -1 for the whole GPU */
} Device;

typedef struct {
    uint64_t registered; /* a bit for each GPU */
    long delivered;
} EventSet;

typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

typedef struct {
    uint64_t total, free, used;
} Memory;

typedef struct {
    unsigned version;
    uint64_t total, reserved, free, used;
} MemoryV2;

typedef struct {
    unsigned gpu, memory;
} Utilization;

typedef struct {
    unsigned version, sensor;
    int celsius;
} Temperature;

typedef struct {
    unsigned pid;
    uint64_t memory;
    unsigned gpu_instance, compute_instance;
} Process;

typedef struct {
    unsigned field, scope;
    int64_t timestamp, latency_us;
    int type, result;
    union {
        double real;
        unsigned natural;
        uint64_t wide;
    } value;
} FieldValue;

typedef struct {
    Device *device;
    uint64_t type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

static Device gpus[MAX_GPUS], migs[MAX_GPUS][MAX_MIGS];
static bool initialised;

static void hang_while(const char *key) {
    while (script_number(EVERYWHERE, key, 0) != 0)
        pause_ms(POLL_MS);
}

/* What may be wrong with any call: its result, SUCCESS when it may go on. */
static int begin(const Device *device, const char *call) {
    char key[64];
    if (script_number(EVERYWHERE, "crash", 0) != 0)
        abort();
    hang_while("hang.all");
    if (!initialised)
        return UNINITIALIZED;
    int gpu = device ? device->gpu : EVERYWHERE;
    snprintf(key, sizeof key, "hang.%s", call);
    pause_ms((unsigned)(1000 * script_number(gpu, key, 0)));
    if (device && script_number(gpu, "lost", 0) != 0)
        return GPU_IS_LOST;
    snprintf(key, sizeof key, "error.%s", call);
    return (int)script_number(gpu, key, SUCCESS);
}

/* The same for what only a whole GPU can tell. */
static int begin_gpu(const Device *device, const char *call) {
    int result = begin(device, call);
    return result == SUCCESS && device->mig >= 0 ? NOT_SUPPORTED : result;
}

#define BEGIN(call) \
    do { \
        int result = begin_gpu(device, call); \
        if (result != SUCCESS) \
            return result; \
    } while (0)

static double number(const Device *device, const char *key, double otherwise) {
    return script_number(device->gpu, key, otherwise);
}

static unsigned gpu_count(void) {
    unsigned count = (unsigned)script_number(EVERYWHERE, "gpus", 8);
    return count < MAX_GPUS ? count : MAX_GPUS;
}

static int mig_count(const Device *device) {
    if (number(device, "mig", 0) == 0)
        return 0;
    int count = (int)number(device, "mig_devices", 2);
    return count < MAX_MIGS ? count : MAX_MIGS;
}

static int put(char *out, unsigned size, const char *text) {
    return (unsigned)snprintf(out, size, "%s", text) < size ? SUCCESS : INSUFFICIENT_SIZE;
}

/* ---- the library and the system ---- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    initialised = true;
    int result = begin(NULL, "init");
    if (result == SUCCESS)
        result = (int)script_number(EVERYWHERE, "init", SUCCESS);
    initialised = result == SUCCESS;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        gpus[gpu] = (Device){gpu, -1};
        for (int mig = 0; mig < MAX_MIGS; mig++)
            migs[gpu][mig] = (Device){gpu, mig};
    }
    return result;
}

int nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void) {
    int result = begin(NULL, "shutdown");
    initialised = false;
    return result;
}

const char *nvmlErrorString(int result) {
    static char text[32];
    snprintf(text, sizeof text, "Error %d", result);
    return text;
}

static int version(const char *key, const char *otherwise, char *out, unsigned size) {
    char value[MAX_VALUE];
    int result = begin(NULL, key);
    if (result != SUCCESS)
        return result;
    return put(out, size, script_text(EVERYWHERE, key, value, sizeof value) ? value : otherwise);
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return version("driver", "550.54.15", out, size);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    return version("nvml", "12.550.54.15", out, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    *out = (int)script_number(EVERYWHERE, "cuda", 12040);
    return begin(NULL, "cuda");
}

int nvmlSystemGetCudaDriverVersion(int *out) {
    return nvmlSystemGetCudaDriverVersion_v2(out);
}

/* ---- which devices there are ---- */

int nvmlDeviceGetCount_v2(unsigned *out) {
    *out = gpu_count();
    return begin(NULL, "count");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    if (index >= gpu_count())
        return INVALID_ARGUMENT;
    *out = &gpus[index];
    return begin(*out, "handle");
}

static void uuid_of(const Device *device, char *out, unsigned size) {
    if (device->mig >= 0)
        snprintf(out, size, "MIG-%08x-5ca1-4e11-%04x-%012x", 0xb0000000u + (unsigned)device->gpu * 0x01010101u,
                 (unsigned)device->mig, (unsigned)device->gpu);
    else if (!script_text(device->gpu, "uuid", out, size))
        snprintf(out, size, "GPU-%08x-5ca1-4e11-9a7e-%012x", 0xa0000000u + (unsigned)device->gpu * 0x01010101u,
                 (unsigned)device->gpu);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    char other[MAX_VALUE];
    for (unsigned gpu = 0; gpu < gpu_count(); gpu++) {
        for (int mig = -1; mig < mig_count(&gpus[gpu]); mig++) {
            *out = mig < 0 ? &gpus[gpu] : &migs[gpu][mig];
            uuid_of(*out, other, sizeof other);
            if (strcmp(uuid, other) == 0)
                return begin(*out, "handle");
        }
    }
    return begin(NULL, "handle") != SUCCESS ? begin(NULL, "handle") : NOT_FOUND;
}

int nvmlDeviceGetUUID(Device *device, char *out, unsigned size) {
    char value[MAX_VALUE];
    uuid_of(device, value, sizeof value);
    int result = put(out, size, value);
    return result != SUCCESS ? result : begin(device, "uuid");
}

int nvmlDeviceGetName(Device *device, char *out, unsigned size) {
    char value[MAX_VALUE] = "NVIDIA H200";
    script_text(device->gpu, "name", value, sizeof value);
    if (device->mig >= 0)
        strcat(value, " MIG 3g.71gb");
    int result = put(out, size, value);
    return result != SUCCESS ? result : begin(device, "name");
}

int nvmlDeviceGetIndex(Device *device, unsigned *out) {
    *out = (unsigned)(device->mig >= 0 ? device->mig : device->gpu);
    return begin(device, "index");
}

int nvmlDeviceGetMinorNumber(Device *device, unsigned *out) {
    BEGIN("minor");
    *out = (unsigned)number(device, "minor", device->gpu);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *out) {
    char value[MAX_VALUE];
    BEGIN("pci");
    if (!script_text(device->gpu, "pci", value, sizeof value))
        snprintf(value, sizeof value, "%08X:%02X:00.0", (unsigned)device->gpu / 8, 0x18 + 0x10 * (device->gpu % 8));
    memset(out, 0, sizeof *out);
    if (put(out->bus_id, sizeof out->bus_id, value) != SUCCESS ||
        sscanf(value, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return INVALID_ARGUMENT;
    snprintf(out->legacy_bus_id, sizeof out->legacy_bus_id, "%04x:%02x:%02x.0", out->domain & 0xffffu,
             out->bus & 0xffu, out->device & 0xffu);
    out->device_id = 0x233510deu;
    return SUCCESS;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    BEGIN("mig");
    *current = *pending = number(device, "mig", 0) != 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *out) {
    BEGIN("mig_count");
    *out = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **out) {
    BEGIN("mig_handle");
    if (index >= (unsigned)mig_count(device))
        return NOT_FOUND;
    *out = &migs[device->gpu][index];
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *device, Device **out) {
    *out = &gpus[device->gpu];
    return device->mig >= 0 ? begin(device, "mig_parent") : INVALID_ARGUMENT;
}

int nvmlDeviceIsMigDeviceHandle(Device *device, unsigned *out) {
    *out = device->mig >= 0;
    return SUCCESS;
}

/* ---- what a device does now ---- */

static Memory memory_of(const Device *device) {
    Memory memory = {.total = (uint64_t)number(device, "memory_total", (double)(141 * GIB)),
                     .used = (uint64_t)number(device, "memory_used", (double)(96 * GIB))};
    if (device->mig >= 0) { /* each instance has its share */
        memory.total /= (unsigned)mig_count(device);
        memory.used /= (unsigned)mig_count(device);
    }
    memory.free = memory.total > memory.used ? memory.total - memory.used : 0;
    return memory;
}

static int begin_memory(const Device *device) {
    int result = begin(device, "memory");
    return result != SUCCESS ? result : begin(device, "sample");
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    *out = memory_of(device);
    return begin_memory(device);
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out) {
    if (out->version != (2u << 24 | sizeof *out))
        return VERSION_MISMATCH;
    Memory memory = memory_of(device);
    *out = (MemoryV2){out->version, memory.total, 0, memory.free, memory.used};
    return begin_memory(device);
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
    BEGIN("utilization");
    if (mig_count(device) > 0)
        return NOT_SUPPORTED; /* as with a real GPU that is divided */
    *out = (Utilization){(unsigned)number(device, "utilization", 97), (unsigned)number(device, "memory_traffic", 41)};
    return SUCCESS;
}

static double power_w(const Device *device) {
    return number(device, "power_w", 612.5);
}

static uint64_t energy_mj(const Device *device) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* so that it grows by itself */
    return (uint64_t)(1000 * number(device, "energy_j", 1e6 + 612.5 * ((double)now.tv_sec + (double)now.tv_nsec / 1e9)));
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *out) {
    BEGIN("power");
    *out = (unsigned)(1000 * power_w(device));
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *out) {
    BEGIN("power_limit");
    *out = (unsigned)(1000 * number(device, "power_limit_w", 700));
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *out) {
    BEGIN("energy");
    *out = energy_mj(device);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out) {
    BEGIN("temperature");
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *out = (unsigned)number(device, "temperature_c", 61);
    return SUCCESS;
}

int nvmlDeviceGetTemperatureV(Device *device, Temperature *out) {
    BEGIN("temperature");
    if (out->version != (1u << 24 | sizeof *out))
        return VERSION_MISMATCH;
    out->celsius = (int)number(device, "temperature_c", 61);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *out) {
    BEGIN("throttle");
    *out = (unsigned long long)number(device, "throttle", 0);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *out) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, out);
}

int nvmlDeviceGetClockInfo(Device *device, unsigned clock, unsigned *out) {
    BEGIN("clock");
    *out = (unsigned)(clock == 2 ? number(device, "memory_clock_mhz", 3201) : number(device, "clock_mhz", 1755));
    return clock < 4 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetMaxClockInfo(Device *device, unsigned clock, unsigned *out) {
    BEGIN("clock_max");
    *out = (unsigned)(clock == 2 ? number(device, "memory_clock_max_mhz", 3201) : number(device, "clock_max_mhz", 1980));
    return clock < 4 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetPersistenceMode(Device *device, unsigned *out) {
    BEGIN("persistence");
    *out = (unsigned)number(device, "persistence", 1);
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *out) {
    char value[MAX_VALUE] = "", *rest = value;
    Process found[MAX_PROCESSES];
    unsigned number_found = 0;
    int result = begin(device, "processes");
    if (result != SUCCESS)
        return result;
    script_text(device->gpu, "processes", value, sizeof value);
    for (char *word; number_found < MAX_PROCESSES && (word = strsep(&rest, ","));) {
        Process process = {.gpu_instance = ~0u, .compute_instance = ~0u};
        unsigned long long bytes = 0;
        if (sscanf(word, "%u:%llu", &process.pid, &bytes) < 1)
            continue;
        process.memory = bytes;
        found[number_found++] = process;
    }
    bool fits = number_found <= *count;
    *count = number_found;
    if (!fits)
        return INSUFFICIENT_SIZE;
    if (out)
        memcpy(out, found, number_found * sizeof *found);
    return SUCCESS;
}

/* ---- faults of memory and links ---- */

int nvmlDeviceGetEccMode(Device *device, unsigned *current, unsigned *pending) {
    BEGIN("ecc_mode");
    *current = *pending = (unsigned)number(device, "ecc_mode", 1);
    return SUCCESS;
}

static uint64_t ecc_errors(const Device *device, unsigned type) {
    return (uint64_t)number(device, type == 0 ? "ecc_corrected" : "ecc_uncorrected", 0);
}

/* Types: 0 corrected, 1 uncorrected. Counters: 0 volatile, 1 aggregate, which here has a past of a thousand more. */
int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, unsigned long long *out) {
    BEGIN("ecc");
    if (number(device, "ecc_mode", 1) == 0)
        return NOT_SUPPORTED;
    *out = ecc_errors(device, type) + (counter == 1 ? 1000 : 0);
    return SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(Device *device, unsigned type, unsigned counter, unsigned location,
                                    unsigned long long *out) {
    BEGIN("ecc_location");
    *out = location == 2 ? ecc_errors(device, type) + (counter == 1 ? 1000 : 0) : 0; /* all in the device's memory */
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    BEGIN("remapped");
    *corrected = (unsigned)number(device, "remapped_corrected", 0);
    *uncorrected = (unsigned)number(device, "remapped_uncorrected", 0);
    *pending = (unsigned)number(device, "remapped_pending", 0);
    *failed = (unsigned)number(device, "remapped_failed", 0);
    return SUCCESS;
}

/* Causes: 0 many corrected errors, 1 one uncorrected. Memory with rows to remap has no such pages, unless scripted. */
int nvmlDeviceGetRetiredPages_v2(Device *device, unsigned cause, unsigned *count, unsigned long long *addresses,
                                 unsigned long long *times) {
    BEGIN("retired");
    double pages = number(device, cause == 0 ? "retired_corrected" : "retired_uncorrected", -1);
    if (pages < 0)
        return NOT_SUPPORTED;
    bool fits = (unsigned)pages <= *count;
    *count = (unsigned)pages;
    if (!fits)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; addresses && i < *count; i++) {
        addresses[i] = 0x1000ull * (i + 1);
        if (times)
            times[i] = 1700000000ull + i;
    }
    return SUCCESS;
}

int nvmlDeviceGetRetiredPages(Device *device, unsigned cause, unsigned *count, unsigned long long *addresses) {
    return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

int nvmlDeviceGetRetiredPagesPendingStatus(Device *device, unsigned *out) {
    BEGIN("retired_pending");
    double pending = number(device, "retired_pending", -1);
    *out = pending > 0;
    return pending < 0 ? NOT_SUPPORTED : SUCCESS;
}

static unsigned links(const Device *device) {
    return (unsigned)number(device, "nvlinks", 18);
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *out) {
    BEGIN("nvlink_state");
    *out = link >= (unsigned)number(device, "nvlinks_down", 0); /* the first ones are down */
    return link < links(device) ? SUCCESS : INVALID_ARGUMENT;
}

/* Counters: 0 replays, 1 recoveries, 2 checksums of flits, 3 of data, 4 ECC. All errors are those of the first link. */
int nvmlDeviceGetNvLinkErrorCounter(Device *device, unsigned link, unsigned counter, unsigned long long *out) {
    BEGIN("nvlink");
    *out = link == 0 && counter == 2 ? (unsigned long long)number(device, "nvlink_errors", 0) : 0;
    return link < links(device) && counter < 5 ? SUCCESS : INVALID_ARGUMENT;
}

/* ---- fields by number ---- */

/* The value of a field by its number in nvml.h; false for one that is not known here. `3.field.NUMBER` goes first. */
static bool field(const Device *device, unsigned id, uint64_t *out) {
    char key[32];
    snprintf(key, sizeof key, "field.%u", id);
    double scripted = number(device, key, -1);
    if (scripted >= 0) {
        *out = (uint64_t)scripted;
        return true;
    }
    switch (id) {
    case 3: case 4: *out = ecc_errors(device, id - 3); return true;
    case 38: *out = (uint64_t)number(device, "nvlink_errors", 0); return true;
    case 45: case 52: case 59: case 160: *out = 0; return true; /* other errors of all links */
    case 82: *out = (uint64_t)number(device, "memory_temperature_c", 68); return true;
    case 83: *out = energy_mj(device); return true;
    case 91: *out = links(device); return true;
    case 142: *out = (uint64_t)number(device, "remapped_corrected", 0); return true;
    case 143: *out = (uint64_t)number(device, "remapped_uncorrected", 0); return true;
    case 144: *out = (uint64_t)number(device, "remapped_pending", 0); return true;
    case 145: *out = (uint64_t)number(device, "remapped_failed", 0); return true;
    case 185: case 186: *out = (uint64_t)(1000 * power_w(device)); return true;
    default: return false;
    }
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    BEGIN("fields");
    for (int i = 0; i < count; i++) {
        values[i].value.wide = 0;
        values[i].type = 3; /* unsigned long long */
        values[i].result = field(device, values[i].field, &values[i].value.wide) ? SUCCESS : NOT_SUPPORTED;
    }
    return SUCCESS;
}

/* ---- events ---- */

int nvmlEventSetCreate(EventSet **out) {
    int result = begin(NULL, "event_create");
    if (result != SUCCESS)
        return result;
    *out = calloc(1, sizeof **out);
    (*out)->delivered = script_last_event(); /* what was before is never told: NVML keeps nothing */
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(Device *device, unsigned long long *out) {
    BEGIN("event_types");
    *out = (unsigned long long)number(device, "event_types", EVENT_TYPES);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    BEGIN("event_register");
    if (types & ~(unsigned long long)number(device, "event_types", EVENT_TYPES))
        return NOT_SUPPORTED;
    if (types & XID)
        set->registered |= 1ull << device->gpu;
    return SUCCESS;
}

static bool any_lost(const EventSet *set) {
    for (unsigned gpu = 0; gpu < gpu_count(); gpu++)
        if (set->registered >> gpu & 1 && number(&gpus[gpu], "lost", 0) != 0)
            return true;
    return false;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    int result = begin(NULL, "event_wait");
    for (unsigned waited = 0; result == SUCCESS; waited += POLL_MS) {
        Event event;
        while (script_event_after(set->delivered, &event)) {
            set->delivered = event.sequence;
            if (event.gpu < 0 || event.gpu >= MAX_GPUS || !(set->registered >> event.gpu & 1))
                continue;
            *out = (EventData){&gpus[event.gpu], XID, event.xid, ~0u, ~0u};
            return SUCCESS;
        }
        if (any_lost(set))
            return GPU_IS_LOST; /* at once, as NVML's description has it */
        if (waited >= timeout_ms)
            return TIMEOUT;
        pause_ms(POLL_MS);
        result = begin(NULL, "event_poll");
    }
    return result;
}

int nvmlEventSetWait(EventSet *set, EventData *out, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}

int nvmlEventSetFree(EventSet *set) {
    free(set);
    return begin(NULL, "event_free");
}
