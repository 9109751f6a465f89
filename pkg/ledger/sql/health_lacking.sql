-- Which of the rights that dropctl needs at run time the role does not have. $1 tables, $2 columns ('': the whole table), $3 rights.
-- It asks the catalogue alone, which everybody may read. A table that is not there is the migrations' matter.
WITH home AS (
    SELECT coalesce((SELECT relnamespace FROM pg_class WHERE oid = to_regclass('dropctl_migrations')),
                    (SELECT min(relnamespace) FROM pg_class WHERE relname = 'dropctl_migrations' AND relkind = 'r')) AS schema
), needed AS (
    SELECT c.oid AS id, t.name, t.col, t.needs FROM unnest($1::text[], $2::text[], $3::text[]) AS t(name, col, needs)
    JOIN pg_class c ON c.relname = t.name AND c.relnamespace = (SELECT schema FROM home) AND c.relkind IN ('r', 'p')
)
SELECT 'USAGE on the schema ' || nspname FROM pg_namespace, home WHERE oid = schema AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT needs || ' on ' || name || CASE WHEN col <> '' THEN ' (' || col || ')' ELSE '' END FROM needed
WHERE NOT CASE WHEN col = '' THEN has_table_privilege(id, needs) ELSE has_column_privilege(id, col, needs) END
