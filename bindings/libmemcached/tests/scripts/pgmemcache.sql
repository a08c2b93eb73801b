\pset format unaligned
\pset tuples_only on
CREATE EXTENSION pgmemcache;
SELECT memcache_server_add(:'server');
SELECT memcache_flush_all();
SELECT memcache_set('key', 'value');
SELECT memcache_get('key');
SELECT memcache_get('absent');
SELECT memcache_add('key', 'other'), memcache_add('new', 'other');
SELECT memcache_replace('key', 'again'), memcache_replace('none', 'again');
SELECT memcache_append('key', '+'), memcache_prepend('key', '-');
SELECT memcache_get('key');
SELECT memcache_set('n', '5');
SELECT memcache_incr('n'), memcache_incr('n', 3), memcache_decr('n', 2);
SELECT memcache_set('short', 'x', interval '100 seconds');
SELECT memcache_get('short');
SELECT memcache_set('bytes', '\x0001ff'::bytea);
SELECT memcache_delete('key'), memcache_get('key');
SELECT * FROM memcache_get_multi(ARRAY['n', 'new', 'absent']) ORDER BY 1;
SELECT memcache_stats() LIKE '%pid: %';
CREATE TABLE people (id int PRIMARY KEY, name text);
CREATE FUNCTION cached() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM memcache_set('person-' || NEW.id, NEW.name); RETURN NEW; END $$;
CREATE TRIGGER cached AFTER INSERT OR UPDATE ON people FOR EACH ROW EXECUTE FUNCTION cached();
INSERT INTO people SELECT i, 'name ' || i FROM generate_series(1, 100) i;
SELECT count(*) FROM people WHERE memcache_get('person-' || id) = name;
UPDATE people SET name = 'changed' WHERE id = 7;
SELECT memcache_get('person-7');
SELECT memcache_flush_all();
SELECT memcache_get('person-7');
