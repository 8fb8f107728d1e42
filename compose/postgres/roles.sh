#!/bin/sh
# Run by Postgres's image when it makes the database: the role of workers and clients, which owns nothing. What
# `pecia migrate` brings later is granted to it as it comes.
set -eu
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'END'
\getenv password FLEET_DATABASE_PASSWORD
CREATE ROLE fleet LOGIN PASSWORD :'password';
GRANT USAGE ON SCHEMA public TO fleet;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO fleet;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE ON SEQUENCES TO fleet;
END
