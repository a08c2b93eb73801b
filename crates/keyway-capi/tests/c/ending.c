/* A program that calls at its end: in a handler of atexit(3), and in a destructor of a thread's own data. There the calls of
 * memcached's clients work; so do these. Prints OK. */
#include <keyway.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static keyway *cache;
static pthread_key_t key;
static int threads_ended;

static void must(int is_so, const char *what)
{
  if (!is_so) {
    fprintf(stderr, "%s: %s\n", what, keyway_message());
    _Exit(1);
  }
}

static void calls(const char *name)
{
  char value[16];
  keyway_item item;

  must(keyway_set(cache, name, strlen(name), "words", 5, 0, 0) == KEYWAY_OK, name);
  must(keyway_get(cache, name, strlen(name), value, sizeof value, &item) == KEYWAY_OK, name);
  must(item.value_len == 5 && memcmp(value, "words", 5) == 0, name);
  must(keyway_get(cache, "absent", 6, value, sizeof value, &item) == KEYWAY_NOT_FOUND, name);
  /* A failure has its code; its message is in storage that the thread has no longer. */
  must(keyway_set(cache, "", 0, "words", 5, 0, 0) == KEYWAY_ERROR_KEY_LENGTH, name);
}

static void end_of_thread(void *unused)
{
  (void)unused;
  calls("thread");
  threads_ended++;
}

static void *work(void *unused)
{
  pthread_setspecific(key, &key);
  calls("work");
  return unused;
}

static void end_of_program(void)
{
  must(threads_ended == 200, "threads");
  for (int i = 0; i < 200; i++)
    calls("program");
  puts("OK");
}

int main(void)
{
  /* Fewer slots than threads: each gives back what it has. */
  keyway_options options = {.size = sizeof options, .memory = 4 << 20};

  cache = keyway_open("memfd", &options);
  must(cache != NULL, "open");
  must(atexit(end_of_program) == 0 && pthread_key_create(&key, end_of_thread) == 0, "handlers");
  calls("main");
  for (int i = 0; i < 200; i++) {
    pthread_t thread;

    must(pthread_create(&thread, NULL, work, NULL) == 0 && pthread_join(thread, NULL) == 0, "a thread");
  }
  return 0;
}
