// Values under an encoding key, and what a handle without it finds in their place.
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// libmemcached reads 32 bytes of the encoding key, whatever length the caller gives.
static const char KEY[40] = "a key, and 32 bytes from its begin";

static void show(memcached_st *memc, const char *whose) {
  size_t length = 0;
  uint32_t flags;
  memcached_return_t rc;
  char *value = memcached_get(memc, "encoded", 7, &length, &flags, &rc);
  printf("%s: %s ", whose, memcached_strerror(memc, rc));
  for (size_t i = 0; value && i < length; i++)
    printf("%02x", (unsigned char)value[i]);
  puts("");
  free(value);
}

static void set(memcached_st *memc, const char *what) {
  printf("set %s: %s\n", what, memcached_strerror(memc, memcached_set(memc, "encoded", 7, what, strlen(what), 0, 0)));
}

int main(int argc, char **argv) {
  if (argc < 2)
    return 2;
  for (int before = 0; before < 2; before++) {
    memcached_st *keyed = memcached_create(NULL), *plain = memcached_create(NULL);
    if (before)
      printf("key: %d\n", memcached_set_encoding_key(keyed, KEY, 6));
    memcached_server_add(keyed, "127.0.0.1", atoi(argv[1]));
    memcached_server_add(plain, "127.0.0.1", atoi(argv[1]));
    printf("none: %d\n", memcached_set_encoding_key(plain, NULL, 0));
    set(plain, "as it is");
    show(plain, "plain");
    if (!before) {
      show(keyed, "keyed");
      printf("key: %d\n", memcached_set_encoding_key(keyed, KEY, 6));
    }
    set(keyed, "a secret");
    show(keyed, "keyed");
    show(plain, "plain");
    memcached_st *copy = memcached_clone(NULL, keyed);
    show(copy, "copy");
    printf("append: %s\n", memcached_strerror(keyed, memcached_append(keyed, "encoded", 7, "x", 1, 0, 0)));
    printf("key away: %d\n", memcached_set_encoding_key(keyed, NULL, 0));
    set(keyed, "as it is");
    show(plain, "plain");
    memcached_free(copy);
    memcached_free(keyed);
    memcached_free(plain);
  }
  printf("no handle: %d\n", memcached_set_encoding_key(NULL, KEY, 6));
}
