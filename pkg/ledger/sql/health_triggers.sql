-- Tables and partitions that lack a trigger of make_append_only, or have it switched off. $1: the tables.
SELECT ARRAY(SELECT p.relid::regclass::text FROM unnest($1::text[]) parent, pg_partition_tree(parent::regclass) p
             WHERE NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = p.relid AND t.tgname = 'append_only' AND t.tgenabled = 'A')
                OR NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = p.relid AND t.tgname = 'append_only_row' AND t.tgenabled IN ('O', 'A'))
             ORDER BY 1)
