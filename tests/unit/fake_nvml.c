/* A libnvidia-ml.so.1 without a card: two cards, or what FAKE_* in the environment says.
 *
 * FAKE_INIT=CODE      nvmlInit answers with this error
 * FAKE_CARDS=N        number of cards (2)
 * FAKE_NAME=TEXT      name of every card; else each has a name of its own
 * FAKE_LOST=I         card number I of the library's count is lost
 * FAKE_MEMORY=WORD    v2 (both questions), v1 (the old one only), none
 * FAKE_PROCESSES=WORD told, hidden (processes without memory), none
 * FAKE_USED=FILE      GiB in use on every card, read at every question
 * FAKE_COUNTERS=FILE  what cards tell, read at every question; lines of two or three words:
 *     COUNTER[@CARD] VALUE      memory_gib, sm_clock, memory_clock (MHz), power, power_limit (mW),
 *                               temperature, gpu, memory (%), reasons (bits), or in place of the
 *                               value: unsupported, missing, denied, unknown, lost, reset
 *     card[@CARD] WORD          one of these words for every question about the card
 *     process[@CARD] PID GIB    a process that computes, in place of those that it else shows
 * FAKE_ASKED=FILE     every question for a counter adds its name as a line
 * FAKE_HANG=FILE      no question for a counter is answered while this exists
 * FAKE_SPIN_MS=N      every question for a counter takes that much of a core
 *
 * Compiled with -DOLD it lacks the functions that came with driver 510 and later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7,
    NO_FUNCTION = 13, LOST = 15, RESET = 16, UNKNOWN = 999
};

typedef struct { int number; } card_t;
typedef struct { unsigned long long total, free, used; } memory_v1_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { unsigned version; int sensor; int temperature; } temperature_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;

static card_t cards[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static const unsigned long long GIB = 1ULL << 30;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value ? value : otherwise;
}

static int is(const char *name, const char *otherwise, const char *word) {
    return strcmp(setting(name, otherwise), word) == 0;
}

static double used_gib(card_t *card) {
    double gib = 0.5 + card->number;
    const char *path = getenv("FAKE_USED");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (fscanf(file, "%lf", &gib) != 1) gib = 0;
        fclose(file);
    }
    return gib;
}

/* Whether a line's first word is this counter, of any card or of this one. */
static int names(const char *word, const char *counter, const card_t *card) {
    char one[64];
    snprintf(one, sizeof one, "%s@%d", counter, card->number);
    return strcmp(word, counter) == 0 || strcmp(word, one) == 0;
}

static int code_of(const char *word) {
    const char *words[] = {"unsupported", "missing", "denied", "unknown", "lost", "reset"};
    const int codes[] = {NOT_SUPPORTED, NO_FUNCTION, NO_PERMISSION, UNKNOWN, LOST, RESET};
    for (int i = 0; i < 6; i++)
        if (strcmp(word, words[i]) == 0) return codes[i];
    return OK;
}

static void take_time(void) {
    const char *hang = getenv("FAKE_HANG");
    clock_t end = clock() + atoi(setting("FAKE_SPIN_MS", "0")) * (CLOCKS_PER_SEC / 1000);
    while (clock() < end) {
    }
    while (hang && access(hang, F_OK) == 0) usleep(5000);
}

/* A counter as the file has it; its value is left alone where the file has none. */
static int counter(card_t *card, const char *name, double *value) {
    const char *path = getenv("FAKE_COUNTERS"), *asked = getenv("FAKE_ASKED");
    char line[256], word[64], said[64];
    int code = OK;
    take_time();
    FILE *file = asked ? fopen(asked, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", name);
        fclose(file);
    }
    file = path ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %63s", word, said) != 2) continue;
        if (names(word, "card", card) && code_of(said)) code = code_of(said);
        if (!names(word, name, card)) continue;
        if (code_of(said)) code = code == OK ? code_of(said) : code;
        else *value = strtod(said, NULL);
    }
    if (file) fclose(file);
    return code;
}

static int whole(card_t *card, const char *name, double otherwise, unsigned *value) {
    int code = counter(card, name, &otherwise);
    if (code == OK) *value = (unsigned)otherwise;
    return code;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return atoi(setting("FAKE_INIT", "0")); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake library"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "575.57.08");
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12090; return OK; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)atoi(setting("FAKE_CARDS", "2"));
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **card) {
    double ignored = 0;
    if (atoi(setting("FAKE_LOST", "-1")) == (int)index) return LOST;
    *card = &cards[index];
    return counter(*card, "handle", &ignored);
}

int nvmlDeviceGetUUID(card_t *card, char *text, unsigned size) {
    snprintf(text, size, "GPU-0000000%d", card->number);
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, card_t **card) {
    double ignored = 0;
    int number;
    if (sscanf(uuid, "GPU-0000000%d", &number) != 1 || number >= 8) return NOT_FOUND;
    if (atoi(setting("FAKE_LOST", "-1")) == number) return LOST;
    *card = &cards[number];
    return counter(*card, "handle", &ignored);
}

int nvmlDeviceGetName(card_t *card, char *text, unsigned size) {
    const char *name = getenv("FAKE_NAME");
    if (name) snprintf(text, size, "%s", name);
    else snprintf(text, size, "Fake RTX %d", card->number);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(card_t *card, int *major, int *minor) {
    *major = 12;
    *minor = card->number;
    return OK;
}

/* The library counts the cards against the order of the bus. */
int nvmlDeviceGetPciInfo_v3(card_t *card, pci_t *info) {
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)(0x80 - card->number);
    return OK;
}

int nvmlDeviceGetMemoryInfo(card_t *card, memory_v1_t *memory) {
    double used = used_gib(card);
    int code = counter(card, "memory_gib", &used);
    if (code) return code;
    if (is("FAKE_MEMORY", "v2", "none")) return NOT_SUPPORTED;
    memory->total = 32 * GIB;
    memory->used = (unsigned long long)((used + 0.25) * (double)GIB); /* reserved too */
    memory->free = memory->total - memory->used;
    return OK;
}

#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(card_t *card, memory_v2_t *memory) {
    double used = used_gib(card);
    int code = counter(card, "memory_gib", &used);
    if (code) return code;
    if (!is("FAKE_MEMORY", "v2", "v2")) return NOT_SUPPORTED;
    if (memory->version != (sizeof *memory | 2u << 24)) return BAD_ARGUMENT;
    memory->total = 32 * GIB;
    memory->reserved = GIB / 4;
    memory->used = (unsigned long long)(used * (double)GIB);
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}
#endif

int nvmlDeviceGetClockInfo(card_t *card, int clock, unsigned *mhz) {
    if (clock == 1) return whole(card, "sm_clock", 2400, mhz);
    return clock == 2 ? whole(card, "memory_clock", 14000, mhz) : BAD_ARGUMENT;
}

int nvmlDeviceGetPowerUsage(card_t *card, unsigned *milliwatts) {
    return whole(card, "power", 300500, milliwatts);
}

int nvmlDeviceGetEnforcedPowerLimit(card_t *card, unsigned *milliwatts) {
    return whole(card, "power_limit", 575000, milliwatts);
}

int nvmlDeviceGetTemperature(card_t *card, int sensor, unsigned *degrees) {
    return sensor == 0 ? whole(card, "temperature", 61, degrees) : BAD_ARGUMENT;
}

int nvmlDeviceGetUtilizationRates(card_t *card, rates_t *rates) {
    int code = whole(card, "gpu", 97, &rates->gpu);
    return code ? code : whole(card, "memory", 52, &rates->memory);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(card_t *card, unsigned long long *bits) {
    double value = 0;
    int code = counter(card, "reasons", &value);
    *bits = (unsigned long long)value;
    return code;
}

#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(card_t *card, unsigned long long *bits) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(card, bits);
}

int nvmlDeviceGetTemperatureV(card_t *card, temperature_t *told) {
    return nvmlDeviceGetTemperature(card, told->sensor, (unsigned *)&told->temperature);
}
#endif

static int processes(unsigned *count, process_t *list, const process_t *found, unsigned number) {
    int hidden = is("FAKE_PROCESSES", "told", "hidden");
    if (is("FAKE_PROCESSES", "told", "none")) return NOT_SUPPORTED;
    if (*count < number) {
        *count = number;
        return TOO_SMALL;
    }
    for (unsigned i = 0; i < number; i++) {
        list[i] = found[i];
        if (hidden) list[i].used = ~0ULL;
    }
    *count = number;
    return OK;
}

/* The processes that the file lists for a card; none of them: -1. */
static int listed(const card_t *card, process_t *found, int room) {
    const char *path = getenv("FAKE_COUNTERS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], word[64];
    unsigned pid;
    double gib;
    int number = -1;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %u %lf", word, &pid, &gib) != 3 || !names(word, "process", card))
            continue;
        if (++number >= room) break;
        found[number] = (process_t){pid, (unsigned long long)(gib * (double)GIB), ~0u, ~0u};
    }
    if (file) fclose(file);
    return number < 0 ? -1 : number + 1;
}

#ifdef OLD
#define nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2
#define nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v2
#endif

int nvmlDeviceGetComputeRunningProcesses_v3(card_t *card, unsigned *count, process_t *list) {
    /* Above the highest pid that Linux gives. */
    process_t found[16] = {
        {5000001, GIB, ~0u, ~0u}, {(unsigned)getpid(), 2 * GIB, ~0u, ~0u}, {5000000, 3 * GIB, ~0u, ~0u},
    };
    double ignored = 0;
    int code = counter(card, "computing", &ignored), number = listed(card, found, 16);
    return code ? code : processes(count, list, found, number < 0 ? 3 : (unsigned)number);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(card_t *card, unsigned *count, process_t *list) {
    process_t found[16] = {{5000001, GIB, ~0u, ~0u}};
    double ignored = 0;
    int code = counter(card, "drawing", &ignored), number = listed(card, found, 16);
    return code ? code : processes(count, list, found, number < 0 ? 1 : 0);
}
