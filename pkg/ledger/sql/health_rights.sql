-- What the role could do behind our back: as an owner of our tables, and to tables that are written once. $1: the latter.
SELECT ARRAY(SELECT c.relname::text FROM pg_class c
             WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'settings'::regclass)
               AND c.relkind IN ('r', 'p') AND pg_has_role(current_user, c.relowner, 'USAGE')
             ORDER BY 1),
       ARRAY(SELECT p.relid::regclass::text FROM unnest($1::text[]) parent, pg_partition_tree(parent::regclass) p
             WHERE has_table_privilege(p.relid, 'UPDATE, DELETE, TRUNCATE')
             ORDER BY 1)
