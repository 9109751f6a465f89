-- Ends sessions of this role that hold locks on our rows and have stood still for longer than a statement may take ($1), as those of
-- a process that was stopped, or of a machine that is gone. PostgreSQL waits for the rest of a COPY or of a batch as long as the connection
-- lasts: statement_timeout does not interrupt that, and idle_in_transaction_session_timeout is not meant for it.
SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid)) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
  AND a.state = 'active' AND a.wait_event_type = 'Client' AND a.query_start < clock_timestamp() - $1::interval
  AND EXISTS (SELECT FROM pg_locks k JOIN pg_class c ON c.oid = k.relation
              WHERE k.pid = a.pid AND k.mode IN ('RowShareLock', 'RowExclusiveLock')
                AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'lots'::regclass))
