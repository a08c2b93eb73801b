/* Does what it is told on its standard input, one line at a time, with one handle, and prints the answers. */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void run(memcached_st *memc, char *line) {
  char verb[16], key[64], value[64];
  uint32_t flags;
  size_t length;
  memcached_return_t rc;
  int words = sscanf(line, "%15s %63s %63s", verb, key, value);
  if (words == 3 && !strcmp(verb, "set")) {
    puts(memcached_strerror(memc, memcached_set(memc, key, strlen(key), value, strlen(value), 0, 0)));
  } else if (words == 2 && !strcmp(verb, "get")) {
    char *got = memcached_get(memc, key, strlen(key), &length, &flags, &rc);
    puts(got ? got : memcached_strerror(memc, rc));
    free(got);
  } else if (words == 3 && !strcmp(verb, "behavior")) {
    puts(memcached_strerror(memc, memcached_behavior_set(memc, atoi(key), strtoull(value, NULL, 10))));
  } else if (words == 1 && !strcmp(verb, "message")) {
    puts(memcached_last_error_message(memc));
  } else if (words == 1 && !strcmp(verb, "clone")) {
    memcached_st *copy = memcached_clone(NULL, memc);
    puts(memcached_strerror(memc, memcached_set(copy, "cloned", 6, "yes", 3, 0, 0)));
    memcached_free(copy);
  } else if (words == 3 && !strcmp(verb, "fork")) {
    fflush(stdout);
    if (fork() == 0) {
      sprintf(line, "set %s %s", key, value);
      run(memc, line);
      fflush(stdout);
      memcached_free(memc);
      _exit(0);
    }
    wait(NULL);
  } else {
    puts("?");
  }
  fflush(stdout);
}

int main(int argc, char **argv) {
  char line[256];
  if (argc != 2) return 2;
  memcached_server_list_st list = memcached_servers_parse(argv[1]);
  memcached_st *memc = memcached_create(NULL);
  memcached_server_push(memc, list);
  memcached_server_list_free(list);
  while (fgets(line, sizeof(line), stdin)) run(memc, line);
  memcached_free(memc);
  return 0;
}
