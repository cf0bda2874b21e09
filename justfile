# `just verify` only reads, `just fix` writes.

default: verify

# What CI runs.
verify:
    .ci/run

# Formats and applies what clippy can mend by itself.
fix:
    cargo fmt --all
    cargo clippy --all-targets --fix --allow-dirty --allow-staged

# A real three-node cluster in this terminal.
up:
    cargo run --release -- up

# Ten times as many clock histories as in CI.
model:
    QUORATE_HISTORIES=1000000 cargo test --release --test clock_model -- --nocapture

# Draws the picture of docs/LIMITS.md anew: look at it before you commit it.
picture:
    REWRITE=1 cargo test --test limits_table picture

# Rewrites the expected output of the golden scripts: read the diff before you commit it.
golden:
    REWRITE=1 cargo test --test golden
