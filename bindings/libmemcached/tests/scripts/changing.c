/* Calls whose arguments another thread changes: changing SERVER SECONDS. Every item that a get returns is whole, and its key is the one that
 * was got. Ends with a line "OK". */
#include <libmemcached/memcached.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(is_so)                                                                     \
    do {                                                                                 \
        if (!(is_so)) {                                                                  \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #is_so, memcached_strerror(st, code)); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

enum { LETTERS = 26, MANY = 40, VALUE = 400 };

static char key[256], value[VALUE];
static const char *keys[MANY];
static size_t lengths[MANY], key_len;
static volatile int is_over;

static void *change(void *unused) {
    for (unsigned turn = 0; !is_over; turn++) {
        char letter = (char)('A' + turn % LETTERS);
        ((volatile char *)key)[key_len - 1] = letter;
        ((volatile char *)key)[key_len / 2] = letter;
        ((volatile char *)value)[turn % VALUE] = letter;
        ((volatile size_t *)lengths)[turn % MANY] = key_len - turn % 2;
        ((const char *volatile *)keys)[turn % MANY] = key + turn % 2;
    }
    return unused;
}

/* An item's value begins with its key. */
static int is_of(const char *text, size_t len, const char *name, size_t name_len) {
    return len >= name_len && memcmp(text, name, name_len) == 0;
}

int main(int argc, char **argv) {
    memcached_st *st = memcached_create(NULL);
    memcached_return_t code = argc == 3 ? memcached_server_add(st, argv[1], 0) : MEMCACHED_ERROR;
    CHECK(code == MEMCACHED_SUCCESS);
    const size_t all[] = {5, 12, 16, 40, 250};
    unsigned seed = 1;
    for (size_t l = 0; l < 10; l++) {
        key_len = all[l % 5];
        memcached_behavior_set(st, MEMCACHED_BEHAVIOR_VERIFY_KEY, l >= 5);
        memcached_callback_set(st, MEMCACHED_CALLBACK_NAMESPACE, l % 2 && key_len < 200 ? "name:" : NULL);
        memset(key, 'k', sizeof key);
        memset(value, '7', sizeof value);
        for (int i = 0; i < MANY; i++)
            keys[i] = key, lengths[i] = key_len;
        /* Every key that a get may ask for has its own name as its value, before it is changed. */
        char name[256];
        memset(name, 'k', sizeof name);
        for (int a = 0; a < LETTERS; a++)
            for (int b = 0; b < LETTERS; b++) {
                name[key_len / 2] = (char)('A' + a), name[key_len - 1] = (char)('A' + b);
                code = memcached_set(st, name, key_len, name, key_len, 0, 0);
                CHECK(code == MEMCACHED_SUCCESS);
            }
        is_over = 0;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, change, NULL) == 0);
        for (int changes = 0; changes < 2; changes++) {
            struct timespec begin, now;
            clock_gettime(CLOCK_MONOTONIC, &begin);
            do {
                for (int i = 0; i < 50; i++) {
                    uint64_t number;
                    uint32_t flags;
                    size_t len;
                    seed = seed * 1103515245 + 12345;
                    switch (changes ? seed >> 16 & 15 : 16 + (seed >> 16 & 1)) {
                    case 0: code = memcached_set(st, key, key_len, value, VALUE, 0, 0); break;
                    case 1: code = memcached_add(st, key, key_len, value, VALUE, 0, 0); break;
                    case 2: code = memcached_replace(st, key, key_len, value, VALUE, 0, 0); break;
                    case 3: code = memcached_append(st, key, key_len, value, 3, 0, 0); break;
                    case 4: code = memcached_prepend(st, key, key_len, value, 3, 0, 0); break;
                    case 5: code = memcached_cas(st, key, key_len, value, VALUE, 0, 0, seed); break;
                    case 6: code = memcached_delete(st, key, key_len, 0); break;
                    case 7: code = memcached_increment(st, key, key_len, 1, &number); break;
                    case 8: code = memcached_touch(st, key, key_len, 1000); break;
                    case 9: code = memcached_exist(st, key, key_len); break;
                    case 10: code = memcached_set_by_key(st, value, 3, key, key_len, value, VALUE, 0, 0); break;
                    case 16: {
                        /* A get of many: each item under the key of which it is. */
                        code = memcached_mget(st, keys, lengths, MANY);
                        CHECK(code == MEMCACHED_SUCCESS);
                        char found[MEMCACHED_MAX_KEY], *text;
                        size_t found_len;
                        while ((text = memcached_fetch(st, found, &found_len, &len, &flags, &code)) != NULL) {
                            CHECK(is_of(text, len, found, found_len));
                            free(text);
                        }
                        break;
                    }
                    default: {
                        char *text = memcached_get(st, key, key_len, &len, &flags, &code);
                        CHECK(code == MEMCACHED_NOTFOUND || (code == MEMCACHED_SUCCESS && (changes || len == key_len)));
                        free(text);
                    }
                    }
                    CHECK(code != MEMCACHED_SERVER_ERROR && code != MEMCACHED_BAD_KEY_PROVIDED);
                }
                clock_gettime(CLOCK_MONOTONIC, &now);
            } while ((double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) * 1e-9 < atof(argv[2]) / 20);
        }
        is_over = 1;
        CHECK(pthread_join(thread, NULL) == 0);
        code = memcached_flush(st, 0);
        CHECK(code == MEMCACHED_SUCCESS);
    }
    memcached_free(st);
    puts("OK");
    return 0;
}
