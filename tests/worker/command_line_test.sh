#!/bin/bash
# Messages and exit status of verbena-train, as far as they need no cluster.
set -u
train=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$work/out" "$work/err"
  failures=$((failures + 1))
}

# expect STATUS TEXT ARGUMENT...: the exit status, and a text on stderr or stdout.
expect() {
  local status=$1 text=$2
  shift 2
  "$train" "$@" > "$work/out" 2> "$work/err" < /dev/null
  local got=$?
  [ "$got" = "$status" ] || fail "$* exits $got, not $status"
  grep -qF -- "$text" "$work/out" "$work/err" || fail "$* does not say: $text"
}

for i in $(seq 40); do echo "$((i % 2)) $((i % 7 + 1)):1 $((i % 2 + 9)):1"; done > "$work/data"
printf '1 1:1\n0 0:1\n' > "$work/bad"
: > "$work/empty"
base=(--format libsvm --data "$work/data" --cluster 127.0.0.1:1)

expect 0 "--consistency" --help
for option in cluster format model data test workers validate-every validate-examples early-stop \
  embedding hidden ngrams staleness dtype gradient-dtype push-codec pull-codec \
  optimizer rate schedule warmup-steps weight-decay clip-global-norm min-count max-rows hot-bytes row-dtype table-option predictions json epochs batch steps \
  seed transport job rank max-workers resume timeout checksum log log-steps config holdout input-memory spool-bytes count-models rdma-device rdma-address \
  device rdma-gpu-direct rdma-gid-index rdma-traffic-class rdma-service-level rdma-mtu rdma-timeout rdma-retries; do
  grep -q -- "--$option" "$work/out" || fail "--help does not explain --$option"
done

expect 2 "lion" "${base[@]}" --optimizer lion
grep -q "adam" "$work/err" || fail "an unknown optimizer: the known ones are not named"
expect 2 "--schedule: 'step' is not allowed: constant, cosine" "${base[@]}" --schedule step
expect 2 "--push-codec: 'gzip' is not allowed: none, bf16, f16, int8, fp8_e4m3, fp8_e5m2, sign, top_k" \
  "${base[@]}" --push-codec gzip
expect 2 "--pull-codec: 'sign' is not allowed: none, bf16, f16, int8, fp8_e4m3, fp8_e5m2" \
  "${base[@]}" --pull-codec sign
expect 2 "--weight-decay: -1 is not allowed; allowed: 0 to 1000" "${base[@]}" --weight-decay -1
expect 2 "--local has a constant rate" "${base[@]}" --local --schedule cosine
expect 2 "--local has no weight decay but --l2" "${base[@]}" --local --weight-decay 0.1
expect 1 "the local store has no optimizer \"ftrl\"" "${base[@]}" --local --optimizer ftrl
expect 2 "--job: '' is not allowed; allowed: 1 to 100 characters of [A-Za-z0-9_./-]" "${base[@]}" --job ''
expect 2 "--job: '\\xc3\\xa4' is not allowed" "${base[@]}" --job 'ä'
expect 2 "--job: '\\xff' is not allowed" "${base[@]}" --job $'\xff'
expect 2 "--token-file: '' is not allowed: give a value" "${base[@]}" --token-file ''
expect 2 "--data: '' is not allowed" --format libsvm --cluster 127.0.0.1:1 --data "$work/data" ''
expect 2 "--consistency: 'ssp:4' is not allowed: sync, ssp, async; --staleness has the steps" \
  "${base[@]}" --consistency ssp:4
expect 2 "--optimizer: adma is none of adagrad, adam" "${base[@]}" --optimizer adma
expect 2 "--rate: -0.1 is not allowed; a rate is a positive number" "${base[@]}" --rate -0.1
expect 2 "--rate: 0 is not allowed" "${base[@]}" --rate 0
expect 2 "--format" --data "$work/data" --cluster 127.0.0.1:1
# Integers: of each option that has one in the help. None wraps.
options=$("$train" --help | grep -oE '^  --[a-z-]+ N ' | tr -d ' N')
[ "$(wc -w <<< "$options")" -ge 15 ] || fail "options with integers: $options"
for option in $options; do
  for value in -18446744073709551615 -9223372036854775809 18446744073709551616 1e2 x ''; do
    expect 2 "$option: '$value' is not allowed: " "${base[@]}" "$option" "$value"
    [ -z "$value" ] || grep -qE "an integer from -?[0-9]+ to [0-9]+" "$work/err" ||
      fail "$option $value: no range: $(cat "$work/err")"
  done
done
expect 2 "--seed: '-1' is not allowed: an integer from 0 to 18446744073709551615" "${base[@]}" --seed -1
elastic=("${base[@]}" --workers 2 --max-workers 4 --job j)
expect 2 "--max-workers: 1 is not allowed; allowed with --workers 2: 2 to 1024, or 0" \
  "${base[@]}" --workers 2 --max-workers 1 --job j
expect 2 "--max-workers needs --job" "${base[@]}" --max-workers 4
expect 2 "--max-workers: workers get their ranks from the job; leave --rank out" "${elastic[@]}" --rank 0
expect 2 "--max-workers is for --consistency sync" "${elastic[@]}" --consistency ssp
expect 2 "--local has one worker" "${base[@]}" --local --max-workers 2
expect 2 "--resume: 'maybe' is not allowed; allowed: yes, no, auto" "${base[@]}" --job j --resume maybe
expect 2 "--resume needs --job" "${base[@]}" --resume
expect 2 "--resume needs --job" "${base[@]}" --resume auto
expect 2 "--cluster: needed" --format libsvm --data "$work/data"
expect 2 "in brackets" --format libsvm --data "$work/data" --cluster ::1:7000
expect 2 "--workers: '0' is not allowed: an integer from 1 to 1024" "${base[@]}" --workers 0
for epochs in 1e20 1000001 0 -1; do
  expect 2 "is not allowed; allowed: above 0, to 1000000" "${base[@]}" --epochs $epochs
done
expect 2 "--epochs: 'nan' is not allowed: a finite number" "${base[@]}" --epochs nan
expect 2 "--epochs: 'inf' is not allowed: a finite number" "${base[@]}" --epochs inf
expect 2 "--epochs and --steps exclude each other" "${base[@]}" --epochs 1 --steps 1
expect 2 "--staleness is for --consistency ssp only" "${base[@]}" --staleness 1
expect 2 "--staleness: '1000001' is not allowed: an integer from 0 to 1000000" \
  "${base[@]}" --consistency ssp --staleness 1000001
expect 2 "--consistency: 'bsp' is not allowed: sync, ssp, async" "${base[@]}" --consistency bsp
expect 2 "--dtype: 'f64' is not allowed: f32, bf16, f16" "${base[@]}" --dtype f64
expect 2 "--gradient-dtype: 'f16' is not allowed: f32, bf16" "${base[@]}" --gradient-dtype f16
for option in dtype gradient-dtype push-codec pull-codec; do
  expect 2 "--local sends nothing: --dtype, --gradient-dtype, --push-codec and --pull-codec are for a cluster" \
    "${base[@]}" --local --$option bf16
done
expect 2 "--device: cuda is for --format text; other models run on cpu" "${base[@]}" --device cuda
for device in gpu cuda: cuda:x 'cuda:0,' cuda:1,1 cuda:1000 cuda:-1; do
  expect 2 "--device: '$device' is not allowed; allowed: cpu, cuda, cuda:N, cuda:N,M,..." \
    "${base[@]}" --device "$device"
done
expect 2 "--rdma-gpu-direct is for --device cuda" "${base[@]}" --rdma-gpu-direct required
expect 2 "--rdma-gpu-direct: 'yes' is not allowed: auto, off, required" "${base[@]}" --rdma-gpu-direct yes
text=(--format text --data "$work/data" --cluster 127.0.0.1:1 --device cuda:0)
expect 2 "--local trains in the host's memory: --device does not go with it" "${text[@]}" --local
for option in dtype gradient-dtype push-codec pull-codec; do
  expect 2 "--device: with cuda:0 parameters and gradients are sent as f32: " "${text[@]}" --$option bf16
done
expect 2 "--rank needs --job" "${base[@]}" --rank 0
expect 2 "--rank: 2 is not allowed; allowed with --workers 2: 0 to 1" \
  "${base[@]}" --workers 2 --rank 2 --job j
expect 2 "--predictions needs --test" "${base[@]}" --predictions "$work/p"
expect 2 "no-such-option" "${base[@]}" --no-such-option
expect 2 "--transport: 'tcp' is not allowed: auto, shm, verbs, ofi" "${base[@]}" --transport tcp
expect 2 "--rdma-retries: '8' is not allowed: an integer from 0 to 7" "${base[@]}" --rdma-retries 8
expect 2 "--rdma-timeout: '0' is not allowed: an integer from 1 to 31" "${base[@]}" --rdma-timeout 0
expect 2 "--rdma-mtu" "${base[@]}" --rdma-mtu 1500
printf 'rate = -2\n' > "$work/toml"
expect 2 "--rate: -2 is not allowed" "${base[@]}" --config "$work/toml"
printf 'rate = [[\n' > "$work/toml"
expect 2 "$work/toml:1: '[[' is neither a number nor true or false; strings are quoted" \
  "${base[@]}" --config "$work/toml"
printf '# a comment\nepchs = 2\n' > "$work/toml"
expect 2 "$work/toml:2: unknown key 'epchs'; known are " "${base[@]}" --config "$work/toml"
printf '[train]\nepochs = 2\n' > "$work/toml"
expect 2 "$work/toml:1: sections are not used here" "${base[@]}" --config "$work/toml"
printf 'epochs: 2\n' > "$work/toml"
expect 2 "$work/toml:1: expected key = value" "${base[@]}" --config "$work/toml"
printf '{"epochs": 2}\n' > "$work/toml"
expect 2 "$work/toml:1: expected key = value" "${base[@]}" --config "$work/toml"
printf 'epochs = 2\nrate = -2\n' > "$work/toml"
expect 2 "$work/toml:2: --rate: -2 is not allowed" "${base[@]}" --config "$work/toml"
printf 'test = "a#b"\n' > "$work/toml"
expect 1 "cannot open a#b" "${base[@]}" --config "$work/toml"

expect 2 "--model: 'tree' is not allowed: logistic, embedding-logistic, fm, mlp" "${base[@]}" --model tree
expect 2 "--model: logistic is for --format libsvm; with criteo it is embedding-logistic" \
  --local --format criteo --data "$work/data" --model logistic
expect 2 "--model: fm does not go with --format text" \
  --local --format text --data "$work/data" --model fm
expect 2 "--hidden: --model fm has no hidden layer" "${base[@]}" --model fm --hidden 8
expect 2 "--embedding does not go with --model logistic" "${base[@]}" --embedding 8
expect 2 "--embedding: '0' is not allowed: an integer from 1 to 256" "${base[@]}" --model fm --embedding 0
expect 2 "--ngrams: 1 is not allowed; allowed: 0, 2 to 7" "${base[@]}" --ngrams 1
expect 2 "--clip-global-norm: -1 is not allowed; allowed: 0 to 1e30" "${base[@]}" \
  --clip-global-norm -1
expect 2 "--local clips nothing" "${base[@]}" --local --clip-global-norm 1
expect 2 "--clip-global-norm is for --consistency sync" \
  "${base[@]}" --consistency async --clip-global-norm 1
expect 2 "--optimizer lamb is for --consistency sync" \
  "${base[@]}" --consistency ssp --optimizer lamb
expect 2 "--clip-global-norm does not go with --model fm, which has an embedding table" \
  "${base[@]}" --model fm --clip-global-norm 1
expect 2 "--optimizer lamb does not go with --ngrams, which has an embedding table" \
  --format text --data "$work/data" --cluster 127.0.0.1:1 --ngrams 3 --optimizer lamb
expect 2 "--min-count is for models with an embedding table" "${base[@]}" --min-count 3
expect 2 "--min-count: '256' is not allowed: an integer from 1 to 255" "${base[@]}" --model fm --min-count 256
expect 2 "--local admits every key" "${base[@]}" --model fm --local --min-count 2
expect 2 "--max-rows is for models with an embedding table" "${base[@]}" --max-rows 1000
expect 2 "--table-option: colour=red is not allowed; allowed: NAME=VALUE with a name of 'verbena table options'" \
  "${base[@]}" --table-option colour=red
expect 2 "--table-option: non_finite is not allowed; allowed: NAME=VALUE" "${base[@]}" --table-option non_finite
expect 2 "--table-option: dim=4: this option follows from the model or has a flag of its own" \
  "${base[@]}" --table-option dim=4
expect 2 "--table-option: eviction.kind=lfu is for models with an embedding table" \
  "${base[@]}" --table-option eviction.kind=lfu
expect 2 '--table-option: non_finite=maybe: non_finite is "maybe"; allowed: reject, apply, skip' \
  "${base[@]}" --table-option non_finite=maybe
expect 2 "--local has no tables: --table-option" "${base[@]}" --local --table-option non_finite=skip
expect 2 "--row-dtype is for models with an embedding table" "${base[@]}" --row-dtype bf16
expect 2 "--local has rows of f32" "${base[@]}" --model fm --local --row-dtype f16
expect 2 "--local keeps all rows" "${base[@]}" --model fm --local --max-rows 1000
expect 2 "--hot-bytes is for models with an embedding table" "${base[@]}" --hot-bytes 100000
expect 2 "--local has its rows in memory" "${base[@]}" --model fm --local --hot-bytes 100000
expect 2 "--early-stop needs --validate-every" "${base[@]}" --test "$work/data" --early-stop 2
expect 2 "--validate-every needs --test" "${base[@]}" --validate-every 2
expect 2 "--validate-examples: 0 is not allowed" \
  "${base[@]}" --test "$work/data" --validate-every 2 --validate-examples 0

local=(--local --format libsvm)
expect 1 "cannot open $work/none: No such file or directory" "${local[@]}" --data "$work/none"
expect 1 "$work/empty: the file is empty" "${local[@]}" --data "$work/empty"
expect 1 "$work/bad:2: field 2 \"0:1\": bad index" "${local[@]}" --data "$work/bad"
expect 1 "cannot write $work/none/p" \
  "${local[@]}" --data "$work/data" --test "$work/data" --predictions "$work/none/p"
expect 1 "$work/empty: the file is empty" --local --format text --data "$work/empty"

# The launcher finds it before it starts workers.
expect 1 "$work/bad:2: field 2 \"0:1\": bad index" \
  --format libsvm --cluster 127.0.0.1:1 --data "$work/bad" --workers 3
[ "$(grep -c 'bad index' "$work/err")" = 1 ] || fail "three workers say the same thing thrice"
grep -q "worker 0" "$work/err" && fail "workers were started for inputs that are wrong"

# Beyond --input-memory a line is parsed when it is read.
for i in $(seq 20000); do echo "$((i % 2)) $((i % 7 + 1)):1 $((i % 2 + 9)):1"; done > "$work/large"
sed '15000s/.*/1 9:x/' "$work/large" > "$work/large_bad"
stream=(--local --format libsvm --model fm --batch 100 --epochs 1 --input-memory 65536)
expect 1 "$work/large_bad:15000: field 2 \"9:x\": bad value; allowed: a finite decimal number" \
  "${stream[@]}" --data "$work/large_bad"
expect 2 "--input-memory: '65535' is not allowed: bytes from 65536 to 1000000000000" \
  "${base[@]}" --input-memory 65535

# A pipe, gzip, a byte order mark and CRLF change nothing; two runs on a stream have the same bits.
hash_of() {
  "$train" --local --format libsvm --model fm --batch 100 --epochs 1 --checksum "$@" \
    2> "$work/err" | sed -n 's/.*xxh64 //p'
}
gzip -c "$work/large" > "$work/large.gz"
{ printf '\xef\xbb\xbf'; sed 's/$/\r/' "$work/large"; } > "$work/large_crlf"
for memory in 100000000 65536; do
  wanted=$(hash_of --data "$work/large" --input-memory $memory)
  [ -n "$wanted" ] || fail "no hash with --input-memory $memory"
  for data in "$work/large" <(cat "$work/large") <(gzip -c "$work/large") "$work/large.gz"; do
    [ "$(hash_of --data "$data" --input-memory $memory)" = "$wanted" ] ||
      fail "$data with --input-memory $memory trains otherwise than the file"
  done
done
[ "$(hash_of --data "$work/large_crlf")" = "$(hash_of --data "$work/large")" ] ||
  fail "CRLF and a byte order mark train otherwise"
expect 1 "/dev/null: is not a regular file, of which each of 2 workers that are launched one by one" \
  "${base[@]}" --workers 2 --rank 0 --job j --data /dev/null
expect 1 "$work/large.gz: temporary copies of pipes and compressed files take more than 1000 bytes" \
  "${stream[@]}" --data "$work/large.gz" --spool-bytes 1000
TMPDIR=$work/none expect 1 \
  "$work/large.gz: cannot make its temporary copy in $work/none: No such file or directory; set TMPDIR" \
  "${stream[@]}" --data "$work/large.gz"
printf '#!/bin/bash\nulimit -f 64\nexec "%s" "$@"\n' "$train" > "$work/limited"
chmod +x "$work/limited"
train=$work/limited expect 1 "File too large (see ulimit -f); set TMPDIR to a folder" \
  "${stream[@]}" --data "$work/large.gz"
# Before the inputs are looked through.
expect 1 "cannot write $work/none/p" \
  "${base[@]}" --data "$work/none" --test "$work/data" --predictions "$work/none/p"
grep -q "worker 0" "$work/err" && fail "workers were started for predictions that cannot be written"
printf '1 67108865:1\n0 9223372036854775808:1\n' > "$work/wide"
expect 0 "trained" --local --format libsvm --model fm --steps 2 --data "$work/wide"
expect 1 "from 1 to 67108864 where each has a dense weight; with --model embedding-logistic, fm or mlp" \
  --local --format libsvm --data "$work/wide"

# A transport that was named and cannot be had never becomes another one.
verbs=(--transport verbs --rdma-device no_such_device)
expect 1 "transport verbs: no RDMA device" "${base[@]}" "${verbs[@]}"
grep -q "no worker finished" "$work/err" || fail "nothing says that no worker finished over verbs"
expect 1 "transport verbs: no RDMA device" "${base[@]}" "${verbs[@]}" --job j --rank 0

# Results: one JSON object on stdout, predictions in order, the same bits twice.
for i in 1 2; do
  "$train" "${local[@]}" --data "$work/data" --test "$work/data" --predictions "$work/p$i" \
    --json --checksum --steps 60 --batch 10 > "$work/json$i" 2> "$work/err" || fail "run $i"
done
cmp -s "$work/p1" "$work/p2" || fail "two runs of one seed predict differently"
[ "$(wc -l < "$work/p1")" = 40 ] || fail "not one prediction a row"
python3 - "$work/json1" "$work/json2" << 'PYTHON' || fail "the JSON objects are not right"
import json, sys
one, two = (json.load(open(path)) for path in sys.argv[1:])
for key in ("samples_per_s", "loss", "bytes_pushed", "bytes_pulled", "seconds", "auc", "accuracy"):
    assert isinstance(one[key], (int, float)), key
assert one["steps"] == 60 and one["samples"] == 600 and one["workers"] == 1
assert one["workers_lost"] == 0 and one["consistency"] == "sync" and one["transport"] == "local"
assert one["auc"] == 1 and one["parameters_xxh64"] == two["parameters_xxh64"]
assert one["dtype"] == "f32" and one["gradient_dtype"] == "f32" and one["push_codec"] == "none"
assert one["pull_codec"] == "none"
PYTHON

for model in embedding-logistic fm mlp; do
  "$train" "${local[@]}" --data "$work/data" --test "$work/data" --model $model --steps 200 \
    --batch 10 --rate 0.02 --validate-every 20 --early-stop 3 --predictions "$work/p1" --json \
    --checksum > "$work/json1" 2> "$work/err" || fail "training $model"
  grep -q "^validation after step 20: AUC " "$work/err" || fail "$model: no validation is told"
  [ "$(wc -l < "$work/p1")" = 40 ] || fail "$model: not one prediction a row"
  python3 - "$work/json1" $model << 'PYTHON' || fail "the JSON object of $model is not right"
import json, sys
one = json.load(open(sys.argv[1]))
assert one["model"] == sys.argv[2] and one["auc"] == 1 and one["stopped_early"] is True
assert 60 < one["steps"] < 200 and one["steps"] % 20 == 1 and len(one["parameters_xxh64"]) == 16
PYTHON
done

# A click log: 40 lines, the last ten of them held out. The first category is the label.
for i in $(seq 40); do
  printf '%s\t5\t\t%s' $((i % 2)) "$i"
  printf '\t%.0s' $(seq 10)
  printf '\t%08x' $((i % 2))
  printf '\t%.0s' $(seq 25)
  echo
done > "$work/clicks"
"$train" --local --format criteo --data "$work/clicks" --holdout 0.25 --steps 100 --rate 0.05 --json \
  > "$work/json1" 2> "$work/err" || fail "training on a click log"
python3 -c 'import json, sys; o = json.load(open(sys.argv[1]))
assert o["model"] == "mlp" and o["test_examples"] == 10 and o["auc"] == 1' "$work/json1" ||
  fail "the JSON object of a click log is not right"
expect 1 "$work/data:1: field 1 (label) \"1 2:1 10:1\": not a label" \
  --local --format criteo --data "$work/data"
expect 1 "leaves nothing to train on or nothing to test on" \
  --local --format criteo --data "$work/clicks" --holdout 0.01

head -c 20000 "$0" > "$work/text"
"$train" --count-models --format text --data "$work/text" --json > "$work/json1" 2> "$work/err" ||
  fail "--count-models"
python3 -c 'import json, sys; o = json.load(open(sys.argv[1]))
assert 8 > o["order_0"] > o["order_1"] > 0 and o["order_2"] > 0' "$work/json1" ||
  fail "the count models' JSON is not right"

# The log of a run; one that cannot be written does not end training.
"$train" --local --format text --data "$work/text" --steps 20 --validate-every 10 --log "$work/log" --json \
  > "$work/json1" 2> "$work/err" || fail "--log"
python3 -c 'import json, sys
events = [json.loads(line) for line in open(sys.argv[1])]
assert [e["event"] for e in events if e["event"] != "progress"] == ["run", "validation", "validation", "result"]
assert events[0]["planned_steps"] == 20 and events[-1]["steps"] == 20
assert [e["step"] for e in events if e["event"] == "validation"] == [10, 20]' "$work/log" ||
  fail "the log of a run is not right"
expect 0 "--log /dev/full: cannot write: No space left on device; the log ends here, and training continues" \
  --local --format text --data "$work/text" --steps 1 --log /dev/full
expect 1 "--log /nowhere/log: cannot open it: No such file or directory" \
  --local --format text --data "$work/text" --steps 1 --log /nowhere/log

# A result that cannot be written is reported, and is no success.
for options in "--local" "--local --json" "--count-models"; do
  # shellcheck disable=SC2086
  "$train" $options --format text --data "$work/text" --steps 1 > /dev/full 2> "$work/err"
  [ $? = 1 ] || fail "$options > /dev/full does not exit 1"
  grep -qF "cannot write the result to standard output: No space left on device" "$work/err" ||
    fail "$options > /dev/full does not say that nothing was written"
done

[ "$failures" = 0 ] && echo "all is well"
exit "$failures"
