# The few commands people repeat.

demo:
    cargo run --release -- serve --demo

test *args:
    scripts/test {{args}}

ci:
    .ci/run

bench *args:
    cargo bench {{args}}

schema:
    cargo run -- schema > docs/gateway.schema.json
