"""The tables of the first release. Databases that came to 0021 by the steps before it have the same.

Revision: 0021, after .
"""

from alembic import op

revision = "0021"
down_revision = None
branch_labels = None
depends_on = None

# Large tables are vacuumed and analysed after a hundredth of them has changed, not a fifth.
_LARGE = (
    "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.01,"
    " autovacuum_analyze_scale_factor = 0.01"
)

_TABLES = f"""
CREATE TABLE access_keys (
    id uuid PRIMARY KEY, digest bytea NOT NULL, tenant varchar(63) NOT NULL, name varchar(200) NOT NULL,
    scopes text[] NOT NULL, lanes text[] NOT NULL, pages_per_day integer, pages_in_flight integer,
    created_at timestamptz NOT NULL DEFAULT now(), expires_at timestamptz, revoked_at timestamptz
);

CREATE TABLE batches (
    id uuid PRIMARY KEY, name varchar(100), tenant varchar(63),
    created_at timestamptz NOT NULL DEFAULT now(), opened_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX batches_name_idx ON batches (coalesce(tenant, ''), name);

CREATE TABLE discarded_payloads (
    payload varchar(64) PRIMARY KEY, discarded_at timestamptz,
    erased_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX discarded_payloads_discarded_at_idx ON discarded_payloads (discarded_at)
    WHERE discarded_at IS NOT NULL;

CREATE TABLE endpoints (
    id uuid PRIMARY KEY, url varchar(2048) NOT NULL, events text[] NOT NULL, secret jsonb NOT NULL,
    former_secret jsonb, former_until timestamptz, client varchar(200) NOT NULL, tenant varchar(63),
    created_at timestamptz NOT NULL DEFAULT now(), disabled_at timestamptz
);
CREATE INDEX endpoints_tenant_idx ON endpoints (tenant, id);

CREATE TABLE erasures (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id uuid NOT NULL,
    actor varchar(207) NOT NULL, reason varchar(200), counts jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX erasures_at_idx ON erasures (at);
CREATE INDEX erasures_job_id_idx ON erasures (job_id);

CREATE TABLE flows (
    digest bytea PRIMARY KEY, id uuid NOT NULL DEFAULT gen_random_uuid()
);

CREATE TABLE jobs (
    id uuid PRIMARY KEY, kind text NOT NULL, lane text NOT NULL, flow uuid,
    state text NOT NULL DEFAULT 'queued' CHECK (
        state IN ('queued', 'running', 'succeeded', 'partial', 'failed', 'cancelled', 'expired')),
    task jsonb NOT NULL, task_digest varchar(64) NOT NULL, payload varchar(64),
    idempotency_key varchar(512) UNIQUE, client varchar(200) NOT NULL, tenant varchar(63), batch uuid,
    label jsonb, metadata jsonb NOT NULL DEFAULT '{{}}', webhook jsonb, traceparent varchar(55),
    total integer, done integer NOT NULL DEFAULT 0, failed integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0, failure jsonb, created_at timestamptz NOT NULL DEFAULT now(),
    not_before timestamptz, expires_at timestamptz, started_at timestamptz, finished_at timestamptz,
    payload_released_at timestamptz, erased_at timestamptz, endings integer NOT NULL DEFAULT 0
) WITH (fillfactor = 70, {_LARGE});
CREATE INDEX jobs_batch_idx ON jobs (batch, id) WHERE batch IS NOT NULL;
CREATE INDEX jobs_expires_at_idx ON jobs (expires_at) WHERE state IN ('queued', 'running');
CREATE INDEX jobs_finished_at_idx ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_flow_idx ON jobs (flow) WHERE state IN ('queued', 'running');
CREATE INDEX jobs_metadata_idx ON jobs USING gin (metadata);
CREATE INDEX jobs_payload_due_idx ON jobs (finished_at)
    WHERE payload_released_at IS NULL AND finished_at IS NOT NULL;
CREATE INDEX jobs_payload_idx ON jobs (payload) WHERE payload_released_at IS NULL;
CREATE INDEX jobs_requests_idx ON jobs (kind, tenant, id) WHERE kind IN ('openai.file', 'openai.batch');
CREATE INDEX jobs_results_due_idx ON jobs (finished_at) WHERE erased_at IS NULL AND finished_at IS NOT NULL;
CREATE INDEX jobs_state_idx ON jobs (state, id);
CREATE INDEX jobs_tenant_idx ON jobs (tenant, id) WHERE tenant IS NOT NULL;
CREATE INDEX jobs_tenant_open_idx ON jobs (tenant, client)
    WHERE tenant IS NOT NULL AND state IN ('queued', 'running');

CREATE TABLE job_keys (
    job_id uuid PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, wrapped jsonb NOT NULL
) WITH (fillfactor = 70, {_LARGE});

CREATE TABLE notices (
    id uuid PRIMARY KEY, job_id uuid NOT NULL REFERENCES jobs ON DELETE CASCADE,
    tenant varchar(63) NOT NULL DEFAULT '', type text NOT NULL, body jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(), after uuid
);
CREATE INDEX notices_tenant_at_idx ON notices (tenant, at, id);
CREATE INDEX notices_job_id_idx ON notices (job_id);

CREATE TABLE output_lengths (
    workload varchar(200) PRIMARY KEY, weights double precision[] NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE reads (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id uuid NOT NULL,
    client varchar(200) NOT NULL, what text NOT NULL CHECK (what IN ('result', 'pages', 'revised')),
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX reads_at_idx ON reads (at);
CREATE INDEX reads_job_id_idx ON reads (job_id);

CREATE TABLE receivers (
    receiver text PRIMARY KEY, next_due timestamptz, failures integer NOT NULL DEFAULT 0,
    failing_since timestamptz, failed_at timestamptz, paused_until timestamptz,
    tenant varchar(63) NOT NULL DEFAULT '', known_at timestamptz NOT NULL DEFAULT now(), well_at timestamptz,
    standing text NOT NULL GENERATED ALWAYS AS
        (CASE WHEN failures > 0 THEN 'failing' WHEN well_at IS NOT NULL THEN 'well' ELSE 'new' END) STORED
);
CREATE INDEX receivers_turn_idx ON receivers (tenant, standing, next_due) WHERE next_due IS NOT NULL;

CREATE TABLE workers (
    name varchar(200) PRIMARY KEY, role varchar(200) NOT NULL, stages text[] NOT NULL,
    host varchar(200) NOT NULL, pid integer NOT NULL, engine varchar(200), capabilities jsonb,
    memory double precision, started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(), stopped_at timestamptz, lost_at timestamptz
) WITH (fillfactor = 50);

CREATE TABLE deliveries (
    id uuid DEFAULT gen_random_uuid() PRIMARY KEY, job_id uuid REFERENCES jobs ON DELETE CASCADE,
    endpoint_id uuid REFERENCES endpoints ON DELETE CASCADE, type text NOT NULL, url text NOT NULL,
    receiver text NOT NULL GENERATED ALWAYS AS
        (coalesce(endpoint_id::text, left(substring(url, '^[a-z]+://[^/?#]+'), 300), '')) STORED,
    body jsonb NOT NULL,
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),
    attempts integer NOT NULL DEFAULT 0, replayed_after integer NOT NULL DEFAULT 0,
    promised_at timestamptz NOT NULL DEFAULT now(), next_at timestamptz NOT NULL DEFAULT now(),
    queued boolean NOT NULL DEFAULT false, last_status integer, last_error text,
    created_at timestamptz NOT NULL DEFAULT now(), finished_at timestamptz
);
CREATE INDEX deliveries_created_at_idx ON deliveries (created_at);
CREATE INDEX deliveries_due_idx ON deliveries (next_at) WHERE state = 'pending' AND NOT queued;
CREATE INDEX deliveries_endpoint_id_idx ON deliveries (endpoint_id, created_at);
CREATE INDEX deliveries_finished_at_idx ON deliveries (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX deliveries_job_id_idx ON deliveries (job_id);
CREATE INDEX deliveries_promised_at_idx ON deliveries (promised_at) WHERE state = 'pending';
CREATE INDEX deliveries_receiver_idx ON deliveries (receiver, next_at) WHERE state = 'pending';

CREATE TABLE job_events (
    sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id uuid NOT NULL REFERENCES jobs ON DELETE CASCADE, part_id uuid, state text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(), actor varchar(207) NOT NULL, attempt integer,
    reason varchar(200)
) WITH ({_LARGE});
CREATE INDEX job_events_job_id_sequence_idx ON job_events (job_id, sequence);

CREATE TABLE parts (
    id uuid PRIMARY KEY, job_id uuid NOT NULL REFERENCES jobs ON DELETE CASCADE,
    stage text NOT NULL CHECK (stage IN ('ingest', 'read', 'caption', 'summarize', 'split')),
    ordinal integer NOT NULL, lane text NOT NULL, flow uuid,
    state text NOT NULL DEFAULT 'queued' CHECK (
        state IN ('held', 'queued', 'running', 'done', 'failed', 'cancelled')),
    cost integer NOT NULL, width integer, height integer, start_s double precision,
    end_s double precision, attempt integer NOT NULL DEFAULT 0, strikes integer NOT NULL DEFAULT 0,
    deaths integer NOT NULL DEFAULT 0, worker varchar(200), failure jsonb, verdict varchar(200),
    doubts integer, run_at timestamptz NOT NULL DEFAULT now(), early boolean NOT NULL DEFAULT false,
    published_at timestamptz, started_at timestamptz, finished_at timestamptz, engine varchar(200),
    prompt_tokens integer, image_tokens integer, cached_tokens integer, output_tokens integer,
    wasted_tokens integer, queued_s double precision, decode_s double precision,
    engine_s double precision, first_token_s double precision, saved_tokens integer,
    UNIQUE (job_id, stage, ordinal)
) WITH (fillfactor = 70, {_LARGE});
CREATE INDEX parts_conflicts_idx ON parts (job_id) WHERE stage = 'split' AND doubts > 0;
CREATE INDEX parts_early_idx ON parts (run_at) WHERE state = 'queued' AND early;
CREATE INDEX parts_failed_idx ON parts (finished_at) WHERE state = 'failed';
CREATE INDEX parts_finished_at_idx ON parts (finished_at) WHERE engine IS NOT NULL;
CREATE INDEX parts_lane_run_at_idx ON parts (lane, run_at) WHERE state = 'queued';
CREATE INDEX parts_needs_review_idx ON parts (job_id) WHERE verdict NOT IN ('ok', 'blank');
CREATE INDEX parts_published_idx ON parts (published_at) WHERE state = 'queued' AND published_at IS NOT NULL;
CREATE INDEX parts_running_idx ON parts (worker) WHERE state = 'running';
CREATE INDEX parts_unpublished_again_idx ON parts (stage, lane, run_at, id)
    WHERE state = 'queued' AND published_at IS NULL AND attempt > 0;
CREATE INDEX parts_unpublished_idx ON parts (stage, lane, coalesce(flow, job_id), run_at, id)
    WHERE state = 'queued' AND published_at IS NULL AND attempt = 0 AND NOT early;

CREATE TABLE delivery_attempts (
    delivery_id uuid NOT NULL REFERENCES deliveries ON DELETE CASCADE, number integer NOT NULL,
    at timestamptz NOT NULL, duration_s double precision NOT NULL, status integer, error text,
    reply text, PRIMARY KEY (delivery_id, number)
);

CREATE TABLE results (
    part_id uuid PRIMARY KEY REFERENCES parts ON DELETE CASCADE,
    job_id uuid NOT NULL REFERENCES jobs ON DELETE CASCADE, ordinal integer NOT NULL,
    attempt integer NOT NULL, content jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now()
) WITH ({_LARGE});
CREATE INDEX results_job_id_ordinal_idx ON results (job_id, ordinal);

CREATE TABLE result_cache (
    key bytea PRIMARY KEY, part_id uuid NOT NULL REFERENCES results ON DELETE CASCADE
);
CREATE INDEX result_cache_part_id_idx ON result_cache (part_id);

CREATE TABLE revisions (
    id uuid PRIMARY KEY, job_id uuid NOT NULL REFERENCES jobs ON DELETE CASCADE,
    part_id uuid NOT NULL REFERENCES results ON DELETE CASCADE, number integer NOT NULL,
    checked boolean NOT NULL, content jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (job_id, number)
);
CREATE INDEX revisions_part_id_number_idx ON revisions (part_id, number)
"""

# A submit locks its payloads and looks up which were released lately, in the statement that writes its jobs. Each
# statement of a volatile function has a snapshot of its own; a single statement keeps its snapshot from before it
# waited for the locks. These are those of `pecia_schemas.discards`.
_HOLD_PAYLOADS = """
CREATE FUNCTION hold_payloads(wanted text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_advisory_xact_lock_shared(1885692777, bucket)
    FROM (SELECT DISTINCT hashtext(payload) & 63 AS bucket FROM unnest(wanted) AS payload) AS buckets;
    RETURN QUERY SELECT CAST(payload AS text) FROM discarded_payloads WHERE payload = ANY(wanted);
END $$
"""


def upgrade() -> None:
    """Make them all."""
    for statement in (*_TABLES.split(";\n"), _HOLD_PAYLOADS):
        op.execute(statement)


def downgrade() -> None:
    """Take them away, with everything that is stored."""
    op.execute("DROP FUNCTION hold_payloads")
    op.execute(
        "DROP TABLE access_keys, batches, discarded_payloads, endpoints, erasures, flows, jobs, job_keys, notices,"
        " output_lengths, reads, receivers, workers, deliveries, job_events, parts, delivery_attempts, results,"
        " result_cache, revisions"
    )
