#!/usr/bin/env bash
# The scrape configuration and the alert rules: promtool where there is one, else as YAML with the
# keys that Prometheus wants.
set -eu
cd "$1/deploy"
if command -v promtool >/dev/null; then
  promtool check config prometheus.yml
  exit 0
fi
# Debian's python3 has Debian's yaml module, whatever else comes first on the PATH.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
"$python" - <<'EOF'
import re
import sys
import yaml

config = yaml.safe_load(open("prometheus.yml"))
job, = config["scrape_configs"]
assert job["job_name"] == "verbena" and job["metrics_path"] == "/metrics", job
for target in job["static_configs"][0]["targets"]:
    assert re.fullmatch(r"[\w.-]+:\d+", target), target
for name in config["rule_files"]:
    for group in yaml.safe_load(open(name))["groups"]:
        for rule in group["rules"]:
            assert rule["alert"] and rule["annotations"]["summary"], rule
            # Balanced, and about metrics of ours or Prometheus's own `up`.
            assert rule["expr"].count("(") == rule["expr"].count(")"), rule["expr"]
            assert re.search(r"\bverbena_\w+|\bup\b", rule["expr"]), rule["expr"]
EOF
