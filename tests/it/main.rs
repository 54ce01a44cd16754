//! Guildgate from the outside: real sockets and real files. A module's name says which part of `docs/contract.md` it holds;
//! each test starts its own gateway on its own port in its own folder: the real binary, or the same parts in the test's
//! own process (`support/here.rs`) where the process is no part of the promise.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[macro_use]
mod support;

mod wire_builtin;
mod wire_cors;
mod wire_headers;
mod wire_parameters;
mod wire_refusals;
mod wire_trace;
mod wire_upstream;

#[cfg(feature = "otlp")]
mod otlp;

mod origin_at_its_worst;
mod origin_places;
mod pass;
mod pass_bounds;
mod pass_keys;
mod upstream_health;
mod upstream_tls;
mod upstreams;

mod framing_alike;
mod framing_body;
mod framing_close;
mod framing_connection;
mod framing_header;
mod framing_slow;

mod http2;
mod http2_floods;
mod http2_framing;
mod http2_slow;
mod tls;
mod tls_certificates;
mod tls_pem;

mod cache_stale;

mod guarantee_1_durable;
mod guarantee_1_kill_nine;
mod guarantee_2_coherent;
mod guarantee_2_histories;
mod guarantee_3_one_question;
mod guarantee_4_fresh;
mod guarantee_5_at_most_once;
mod guarantee_6_fair;
mod guarantee_7_prompt;
mod guarantee_8_bounded;
mod guarantee_9_silent;

mod limits;
mod limits_daily;
mod limits_reload;
mod limits_shadow;

mod keys_changed;
mod keys_file;
mod keys_learned;
mod keys_learned_fair;
mod keys_learned_waits;

mod handover;
mod handover_load;
mod handover_peers;
mod hang_up;
mod postgres_cut_off;
mod postgres_nodes;
mod postgres_pooler;
mod postgres_url;

mod admin_access;
mod admin_api;
mod admin_audit;
mod admin_metrics;
mod admin_openapi;
mod admin_start;
mod dashboard_access;
mod dashboard_browser;
mod dashboard_pages;
mod pass_browser;
mod proxy_protocol;
mod secrets;
mod serving;
mod serving_drain_delay;
mod serving_log;
mod serving_log_bound;
mod serving_refusals;
mod serving_reload;
mod serving_reload_disk;
mod serving_reload_parts;
mod serving_reload_waits;
mod slow_clients;
mod store_backup;
mod store_defect;
mod store_faults;
mod store_refused;
mod unsent;

mod cluster_bad_redis;
mod cluster_haproxy;
mod cluster_histories;
mod cluster_limits;
mod cluster_lost_replies;
mod cluster_status;
mod cluster_writes;
mod commands_check;
mod commands_conform;
mod commands_guild;
mod commands_health;
mod commands_import;
mod commands_interrupted;
mod commands_limits;
mod commands_piped;
mod commands_why;
mod held_body;
mod key_life;

mod docs_callers;
mod docs_framing;
mod docs_limits;
mod docs_openapi;
mod docs_operating;
mod floors;
mod harness;
mod idle;
mod package;
