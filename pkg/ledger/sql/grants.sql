-- What dropctl needs at run time, and nothing more. {role} is the quoted name of its role, {schema} that of the schema.
-- Given anew each time, so that a right taken back in a later version is really gone.
REVOKE ALL ON settings, dropctl_migrations, lots, lot_epochs, reservation_events, waiting_events, dead_letters, reservations,
    pending_allocations, order_ledger, refunds_due, apply_budget, workers, reconcile_runs, lot_verdicts, repairs, api_keys,
    charges, charge_refunds, hooks, hook_deliveries, hook_lots FROM {role};
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON settings, dropctl_migrations TO {role};
GRANT UPDATE (server, unsent) ON settings TO {role};
GRANT UPDATE (settled_at, settled_why, settled_by, settled_reason, told) ON refunds_due TO {role};
GRANT UPDATE (settled_at, settled_how) ON dead_letters TO {role};
GRANT UPDATE (ended_at, outcome, detail) ON repairs TO {role};
GRANT UPDATE (revoked_at, revoked_by) ON api_keys TO {role};
GRANT SELECT, INSERT ON lot_epochs, reservation_events, dead_letters, order_ledger, refunds_due, repairs, api_keys TO {role};
GRANT SELECT, INSERT, UPDATE ON lots, reservations, pending_allocations, reconcile_runs, charges, charge_refunds TO {role};
GRANT SELECT, INSERT, DELETE ON waiting_events TO {role};
GRANT SELECT, UPDATE ON apply_budget TO {role};
GRANT SELECT, INSERT, UPDATE ON hooks, hook_lots TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON workers, lot_verdicts, hook_deliveries TO {role};
