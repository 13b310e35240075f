/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/replay_main.c - main() for a fuzz target without libFuzzer: runs it over every file of the directories
 * (or files) given, so that gcc, valgrind and the sanitizers of every preset see the corpus.
 */
#include "base/compiler.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t len = 0, cap = 0;

    if (f == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    for (;;) {
        if (len == cap) {
            cap = cap ? 2 * cap : 4096;
            data = realloc(data, cap);
            REQUIRE(data != NULL);
        }
        size_t n = fread(data + len, 1, cap - len, f);
        if (n == 0)
            break;
        len += n;
    }
    fclose(f);

    /* An exact-size copy lets ASan see a read of one byte too many. */
    uint8_t *exact = malloc(len ? len : 1);
    REQUIRE(exact != NULL);
    memcpy(exact, data, len);
    free(data);
    fprintf(stderr, "replay %s (%zu bytes)\n", path, len);
    LLVMFuzzerTestOneInput(exact, len);
    free(exact);
    return 0;
}

static int replay_dir(const char *path, unsigned *count)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int rc = 0;

    if (dir == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    while ((entry = readdir(dir)) != NULL) {
        char name[PATH_MAX];
        struct stat st;

        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (stat(name, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (replay_file(name) < 0)
            rc = -1;
        (*count)++;
    }
    closedir(dir);
    return rc;
}

int main(int argc, char **argv)
{
    unsigned count = 0;
    int rc = 0;

    if (LLVMFuzzerInitialize != NULL)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        struct stat st;

        if (stat(argv[i], &st) == 0 && S_ISREG(st.st_mode)) {
            if (replay_file(argv[i]) < 0)
                rc = 1;
            count++;
        } else if (replay_dir(argv[i], &count) < 0) {
            rc = 1;
        }
    }
    printf("%u inputs replayed\n", count);
    if (count == 0) {
        fprintf(stderr, "no input: an empty corpus tests nothing\n");
        rc = 1;
    }
    return rc;
}
