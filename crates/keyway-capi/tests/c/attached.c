// A client of a server's region socket: attached SOCKET [refused|unusable|killed]
//
// Reads what the server's clients stored, stores for them, and ends well ("OK"), in the middle of it ("killed"), or finds that
// it may not have the region ("refused"), or cannot use it ("unusable").

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
    keyway *cache = keyway_open(argv[1], NULL);
    if (strcmp(how, "refused") == 0 || strcmp(how, "unusable") == 0) {
        EXPECT(cache == NULL);
        EXPECT(keyway_error() == (*how == 'r' ? KEYWAY_ERROR_REFUSED : KEYWAY_ERROR_UNUSABLE));
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
