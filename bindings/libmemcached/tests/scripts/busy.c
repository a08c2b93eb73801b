/* Sets and gets its own keys until it is killed, five minutes at most, and ends with 1 if an answer is wrong. A value is its key and a
   number that rises. */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  alarm(300);
  memcached_st *memc = memcached_create(NULL);
  memcached_server_add(memc, argv[1], (in_port_t) atoi(argv[2]));
  char key[64], value[4096];
  for (unsigned long round = 0;; round++) {
    int key_length = snprintf(key, sizeof(key), "busy-%s-%lu", argv[3], round % 100);
    int length = snprintf(value, sizeof(value), "%s:%lu:", key, round);
    memset(value + length, 'v', round % 3000);
    size_t size = (size_t) length + round % 3000;
    if (memcached_set(memc, key, key_length, value, size, 0, (uint32_t) round)) return 1;
    size_t got_size;
    uint32_t flags;
    memcached_return_t rc;
    char *got = memcached_get(memc, key, key_length, &got_size, &flags, &rc);
    if (rc || got_size != size || memcmp(got, value, size) || flags != (uint32_t) round) return 1;
    free(got);
    if (round % 7 == 0 && memcached_delete(memc, key, key_length, 0)) return 1;
    if (round == 10) { puts("busy"); fflush(stdout); }
  }
}
