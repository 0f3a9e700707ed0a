/* gpualert's launcher: the bundle's interpreter, started from wherever the bundle lies, out of reach of the image.
 *
 * As bin/gpualert it first blocks every signal: as PID 1 the kernel would drop a SIGTERM that comes before somebody takes
 * it. What was blocked and ignored goes to the supervisor in _GPUALERT_SIGNALS, since the interpreter changes both.
 * As bin/python3 (a link to it) it is an interpreter for gpualert's own processes.
 * Variables that would change how our own libraries are loaded are put aside under _GPUALERT_ENV_; the supervisor gives
 * them back to the command. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;
static const char *const OURS[] = {"LD_", "GLIBC_TUNABLES=", "GCONV_PATH=", "LOCPATH=", "MALLOC_", "OPENSSL_"};
static char root[PATH_MAX], handover[64];

static char *joined(const char *first, const char *second) {
    char *text = malloc(strlen(first) + strlen(second) + 1);
    return text ? strcat(strcpy(text, first), second) : NULL;
}

int main(int argc, char **argv) {
    const char *name = strrchr(argv[0] ? argv[0] : "", '/');
    int python = !strcmp(name ? name + 1 : argv[0] ? argv[0] : "", "python3"), n = 0, e = 0, count = 0;
    if (!python) {
        unsigned long long all = ~0ULL, blocked = 0, ignored = 0;
        struct { void (*handler)(int); unsigned long rest[31]; } act; /* the kernel's, larger than any */
        syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &blocked, sizeof blocked);
        for (int number = 1; number <= 64; number++)
            if (!syscall(SYS_rt_sigaction, number, NULL, &act, sizeof all) && act.handler == SIG_IGN)
                ignored |= 1ULL << (number - 1);
        snprintf(handover, sizeof handover, "_GPUALERT_SIGNALS=%llx:%llx", blocked, ignored);
    }
    ssize_t length = readlink("/proc/self/exe", root, sizeof root - 1);
    if (length <= 0 && !realpath((const char *)getauxval(AT_EXECFN), root)) root[0] = 0; /* no /proc */
    for (int up = 0; up < 2; up++) /* without /bin/gpualert */
        if (strrchr(root, '/')) *strrchr(root, '/') = 0;

    while (environ[count]) count++;
    char **environment = malloc((count + 2) * sizeof *environment), **arguments = malloc((argc + 12) * sizeof *arguments);
    if (!environment || !arguments) return 125;
    for (int i = 0; i < count; i++) {
        if (!python && !strncmp(environ[i], "_GPUALERT_SIGNALS=", 18)) continue; /* somebody else's */
        environment[e] = environ[i];
        for (size_t k = 0; k < sizeof OURS / sizeof *OURS; k++)
            if (!strncmp(environ[i], OURS[k], strlen(OURS[k]))) environment[e] = joined("_GPUALERT_ENV_", environ[i]);
        if (environment[e++] == NULL) return 125;
    }
    if (!python) environment[e++] = handover;
    environment[e] = NULL;

    char *loader = joined(root, "/lib/gpualert"); /* ld.so under a name that ps may show */
    arguments[n++] = "gpualert";
    arguments[n++] = "--inhibit-cache";
    arguments[n++] = "--library-path";
    arguments[n++] = joined(root, "/lib");
    arguments[n++] = "--argv0";
    arguments[n++] = joined(root, "/bin/python3");
    arguments[n++] = joined(root, "/lib/python3");
    if (!python) {
        arguments[n++] = "-ISB";
        arguments[n++] = joined(root, "/lib/start.pyc");
    }
    for (int i = 1; i < argc; i++) arguments[n++] = argv[i];
    arguments[n] = NULL;
    execve(loader ? loader : "", arguments, environment);
    dprintf(2, "gpualert: cannot start %s/lib/gpualert (%s)\n", root, strerror(errno));
    return 125;
}
