/* Preloaded into a process: writes the name of each variable that it asks for into the file that
   ASKED_FOR names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef char *(*lookup)(const char *);

static void note(lookup real, const char *name) {
    const char *place = real("ASKED_FOR");
    int file = place ? open(place, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    char line[256];
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%s %s\n", program_invocation_short_name, name);
    if (write(file, line, length) < 0) _exit(99);
    close(file);
}

char *getenv(const char *name) {
    static lookup real;
    if (!real) real = (lookup)dlsym(RTLD_NEXT, "getenv");
    if (strcmp(name, "ASKED_FOR")) note(real, name);
    return real(name);
}

char *secure_getenv(const char *name) {
    static lookup real;
    if (!real) real = (lookup)dlsym(RTLD_NEXT, "secure_getenv");
    note(real, name);
    return real(name);
}
