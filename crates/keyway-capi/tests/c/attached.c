// A client of a server's region socket, or of its region: attached PLACE [refused|unusable|full|argument|killed|any-owner]
//
// Reads what the server's clients stored, stores for them, and ends well ("OK"), in the middle of it ("killed"), or finds that
// it may not have the region ("refused"), cannot use it ("unusable"), has no slot in it ("full"), or that this is no place ("argument").
// "any-owner": the region may be another user's.

#include <keyway.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define EXPECT(condition)                                                            \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "not so: %s (%s)\n", #condition, keyway_message());      \
            return 1;                                                                \
        }                                                                            \
    } while (0)

int main(int argc, char **argv) {
    const char *how = argc > 2 ? argv[2] : "";
    keyway_options options = {.size = sizeof options};
    if (strcmp(how, "any-owner") == 0) options.flags = KEYWAY_ANY_OWNER;
    keyway *cache = keyway_open(argv[1], &options);
    const struct {
        const char *how;
        int error;
    } failures[] = {
        {"refused", KEYWAY_ERROR_REFUSED},
        {"unusable", KEYWAY_ERROR_UNUSABLE},
        {"full", KEYWAY_ERROR_FULL},
        {"argument", KEYWAY_ERROR_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        if (strcmp(how, failures[i].how) != 0) continue;
        EXPECT(cache == NULL);
        EXPECT((int)keyway_error() == failures[i].error);
        puts(keyway_message());
        return 0;
    }
    EXPECT(cache != NULL);
    char value[16];
    keyway_item item;
    EXPECT(keyway_get(cache, "from-server", 11, value, sizeof value, &item) == KEYWAY_OK);
    EXPECT(item.value_len == 5 && memcmp(value, "hello", 5) == 0);
    EXPECT(keyway_set(cache, "from-c", 6, "world", 5, 0, 7) == KEYWAY_OK);
    if (strcmp(how, "killed") == 0) raise(SIGKILL);
    keyway_close(cache);
    puts("OK");
    return 0;
}
