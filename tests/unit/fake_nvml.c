/* A libnvidia-ml.so.1 without a card: two cards, or what FAKE_* in the environment says.
 *
 * FAKE_INIT=CODE      nvmlInit answers with this error
 * FAKE_CARDS=N        number of cards (2)
 * FAKE_NAME=TEXT      name of every card; else each has a name of its own
 * FAKE_LOST=I         card number I of the library's count is lost
 * FAKE_MEMORY=WORD    v2 (both questions), v1 (the old one only), none
 * FAKE_PROCESSES=WORD told, hidden (processes without memory), none
 * FAKE_USED=FILE      GiB in use on every card, read at every question
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };

typedef struct { int number; } card_t;
typedef struct { unsigned long long total, free, used; } memory_v1_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process_t;
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
    if (atoi(setting("FAKE_LOST", "-1")) == (int)index) return LOST;
    *card = &cards[index];
    return OK;
}

int nvmlDeviceGetUUID(card_t *card, char *text, unsigned size) {
    snprintf(text, size, "GPU-0000000%d", card->number);
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, card_t **card) {
    int number;
    if (sscanf(uuid, "GPU-0000000%d", &number) != 1 || number >= 8) return NOT_FOUND;
    if (atoi(setting("FAKE_LOST", "-1")) == number) return LOST;
    *card = &cards[number];
    return OK;
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
    if (is("FAKE_MEMORY", "v2", "none")) return NOT_SUPPORTED;
    memory->total = 32 * GIB;
    memory->used = (unsigned long long)((used_gib(card) + 0.25) * (double)GIB); /* reserved too */
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(card_t *card, memory_v2_t *memory) {
    if (!is("FAKE_MEMORY", "v2", "v2")) return NOT_SUPPORTED;
    if (memory->version != (sizeof *memory | 2u << 24)) return BAD_ARGUMENT;
    memory->total = 32 * GIB;
    memory->reserved = GIB / 4;
    memory->used = (unsigned long long)(used_gib(card) * (double)GIB);
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}

static int processes(unsigned *count, process_t *list, const unsigned *pids, unsigned number) {
    int hidden = is("FAKE_PROCESSES", "told", "hidden");
    if (is("FAKE_PROCESSES", "told", "none")) return NOT_SUPPORTED;
    if (*count < number) {
        *count = number;
        return TOO_SMALL;
    }
    for (unsigned i = 0; i < number; i++) {
        list[i].pid = pids[i];
        list[i].used = hidden ? ~0ULL : (i + 1) * GIB;
    }
    *count = number;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(card_t *card, unsigned *count, process_t *list) {
    /* Above the highest pid that Linux gives. */
    unsigned pids[] = {5000001, (unsigned)getpid(), 5000000};
    (void)card;
    return processes(count, list, pids, 3);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(card_t *card, unsigned *count, process_t *list) {
    unsigned pids[] = {5000001};
    (void)card;
    return processes(count, list, pids, 1);
}
