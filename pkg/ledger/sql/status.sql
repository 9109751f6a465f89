SELECT (SELECT count(*) FROM lots WHERE archive <> 'done'),
       (SELECT coalesce(sum(waiting), 0)::bigint FROM lots),
       (SELECT count(*) FROM refunds_due WHERE settled_at IS NULL),
       (SELECT coalesce(sum(units), 0)::bigint FROM refunds_due WHERE settled_at IS NULL),
       (SELECT count(*) FROM pending_allocations WHERE state IN ('PENDING', 'PROCESSING') AND charge = 0),
       (SELECT min(confirmed_at) FROM pending_allocations WHERE state IN ('PENDING', 'PROCESSING') AND charge = 0),
       now()
