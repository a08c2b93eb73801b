/*
 * A program that shares a cache with others, in C; neighbour.py is the same in Python, and says what it does.
 *
 * Usage: neighbour PLACE COMMAND …
 */
#include <keyway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY = 8 << 20, ROOM = 1 << 16 };

static keyway *cache;
static char value[ROOM];

static void check(int well, const char *what) {
    if (!well) {
        fprintf(stderr, "%s: %s\n", what, keyway_message());
        exit(1);
    }
}

static int is_there(const char *key, keyway_item *item) {
    keyway_result result = keyway_get(cache, key, strlen(key), value, sizeof value, item);
    check(result == KEYWAY_OK || result == KEYWAY_NOT_FOUND, key);
    return result == KEYWAY_OK;
}

static void swap(const char *own, const char *other) {
    keyway_item item;
    check(keyway_set(cache, own, strlen(own), own, strlen(own), 0, 0) == KEYWAY_OK, own);
    while (!is_there(other, &item))
        ;
    printf("swapped %.*s\n", (int)item.value_len, value);
}

static void fill(const char *prefix, int count, size_t size, int64_t ttl) {
    char key[100];
    memset(value, 'v', size);
    for (int number = 0; number < count; number++) {
        int len = snprintf(key, sizeof key, "%s%d", prefix, number);
        check(keyway_set(cache, key, (size_t)len, value, size, ttl, 0) == KEYWAY_OK, key);
    }
    printf("filled %d\n", count);
}

static void count(const char *prefix, int count) {
    char key[100];
    keyway_item item;
    int found = 0;
    for (int number = 0; number < count; number++) {
        snprintf(key, sizeof key, "%s%d", prefix, number);
        found += is_there(key, &item);
    }
    printf("counted %d\n", found);
}

static void vanish(const char *key) {
    keyway_item item;
    while (is_there(key, &item))
        ;
    printf("vanished\n");
}

static void write_on(const char *key) {
    for (size_t turn = 1;; turn++) {
        memset(value, 'a' + (int)(turn % 26), turn % 5000);
        check(keyway_set(cache, key, strlen(key), value, turn % 5000, 0, 0) == KEYWAY_OK, key);
        if (turn == 100) {
            printf("writing\n");
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv) {
    keyway_options options = {.size = sizeof options, .memory = MEMORY};
    check(argc > 3, "usage: neighbour PLACE COMMAND ...");
    cache = keyway_open(argv[1], &options);
    check(cache != NULL, argv[1]);
    if (!strcmp(argv[2], "swap") && argc == 5)
        swap(argv[3], argv[4]);
    else if (!strcmp(argv[2], "fill") && argc == 7)
        fill(argv[3], atoi(argv[4]), (size_t)atoi(argv[5]), atoi(argv[6]));
    else if (!strcmp(argv[2], "count") && argc == 5)
        count(argv[3], atoi(argv[4]));
    else if (!strcmp(argv[2], "vanish") && argc == 4)
        vanish(argv[3]);
    else if (!strcmp(argv[2], "write") && argc == 4)
        write_on(argv[3]);
    else
        check(0, argv[2]);
    keyway_close(cache);
    return 0;
}
