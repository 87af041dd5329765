#!/usr/bin/env bash
# A walk through all commands with everything wrong that a user can get wrong: arguments, files, Ctrl-C at bad moments, a
# full disk. Each failure must be one line "imago: error: …" and the exit code promised, and leave no file behind.
#
#   walk.sh PROGRAM [TRANSCRIPT]
set -u
program=$1
work=$(mktemp -d)
transcript=${2:-$work/transcript}
small_disk=
trap '[ -z "$small_disk" ] || umount "$small_disk"; rm -rf "$work"' EXIT
cd "$work" || exit 1
export NO_COLOR=1
failures=0
: >"$transcript"

complain() {
  echo "walk: $*" | tee -a "$transcript" >&2
  failures=$((failures + 1))
}

# fails CODE ARGUMENT...: imago says in one line what is wrong, and nothing else.
fails() {
  local wanted=$1 code=0
  shift
  "$program" "$@" >out 2>err </dev/null || code=$?
  { echo "\$ imago ${*@Q}"; cat out err; } >>"$transcript"
  [ "$code" -eq "$wanted" ] || complain "imago $*: exit code $code, not $wanted"
  [ ! -s out ] || complain "imago $*: something on standard output"
  [ "$(wc -l <err)" -eq 1 ] || complain "imago $*: not one line of error"
  grep -q '^imago: error: .' err || complain "imago $*: no 'imago: error: '"
  rm -f out err
  no_debris "imago $*"
}

no_debris() {
  local found
  found=$(find . -name '*.part*' -o -name '*.tmp*' -o -name '.*imago*' -o -name 'never*' | head -n 3)
  [ -z "$found" ] || { complain "$1 leaves $found"; rm -rf $found; }
}

echo "== what there is to work with" >>"$transcript"
"$program" synth good.gguf --type f16 --width 64 --blocks 2 --feed-forward 128 --heads 2 --kv-heads 2 --vocabulary 512 --ctx 256 -q
"$program" convert good.gguf folder -q >/dev/null
cat >net.json <<'JSON'
{"id":"n","depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{"z":0,"y":0,"x":0,"l":0,"type":"Dense","activation":"Linear","dtype":"float32","input_height":2,"output_height":2}]}
JSON
printf '0,1,0\n1,0,1\n0,0,0\n1,1,1\n' >data.csv
"$program" train net.json --data data.csv --loss cross_entropy_logits -o trained.json -q >/dev/null || complain "no network to work with"
head -c 3000 good.gguf >cut.gguf
head -c 5000 /dev/urandom >garbage.bin
: >empty
cp trained.json locked.json && chmod 0 locked.json
yes 'All work and no play.' | head -n 2000 >text.txt

commands=$("$program" --help | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p')

echo "== wrong arguments" >>"$transcript"
fails 2
fails 2 frobnicate
fails 2 --frobnicate
for command in $commands; do
  fails 2 "$command" --frobnicate
  fails 2 "$command" --hepl
  fails 2 "$command" one two three four
done
fails 2 inspect
fails 2 convert good.gguf
fails 2 morph good.gguf never.gguf
fails 2 morph good.gguf never.gguf --to q4_9
fails 2 morph good.gguf never.gguf --to
fails 2 morph good.gguf never.xyz --to q4_k
fails 2 convert good.gguf never.gguf --tensor-type nonsense
fails 2 convert good.gguf never.safetensors --to int8 --granularity block --group 33
fails 2 train net.json --data data.csv -o never.json --optimizer sdg
fails 2 train net.json --data data.csv -o never.json --epochs -3
fails 2 train net.json --data data.csv -o never.txt
fails 2 init net.json -o never.txt
fails 2 init net.json -o never.json --seed -1
fails 2 run good.gguf -p hi --temp hot
fails 2 run good.gguf -p hi --device gpu
fails 2 run good.gguf -p hi --gpu-layers 3
fails 2 bench good.gguf --device cuda:x
fails 2 run good.gguf -p hi -n 1e99
fails 2 run good.gguf -p hi -ngl 99
fails 2 run good.gguf -p hi --top-p 7
fails 2 eval good.gguf
fails 2 logits good.gguf --ids 1,x -o never.safetensors
fails 2 logits good.gguf --ids 99999 -o never.safetensors
fails 2 tokenize good.gguf
fails 2 synth never.gguf --heads 3 --width 64
fails 2 bench kernels --format q4_9
fails 2 doctor -t many
fails 2 completion tcsh
fails 2 calibrate good.gguf -o never.gguf
fails 2 plan good.gguf --text text.txt -o never.json
fails 2 plan good.gguf --bits 0.1 --text text.txt --ctx 64 -o never.json
fails 2 morph good.gguf never.gguf --to q4_0 --method gptq
fails 2 sweep good.gguf --types q4_9 --text text.txt

echo "== missing and strange files" >>"$transcript"
for file in nowhere empty garbage.bin cut.gguf text.txt . /dev/null; do
  fails 1 inspect "$file"
  fails 1 convert "$file" never.gguf
  fails 1 run "$file" -p hi
  fails 1 chat "$file"
  fails 1 eval "$file" --text text.txt
  fails 1 tokenize "$file" -p hi
  fails 1 logits "$file" --ids 1 -o never.safetensors
  fails 1 forward "$file" --input garbage.bin -o never.safetensors
  fails 1 compare "$file" trained.json
  fails 1 compare trained.json "$file"
  fails 1 calibrate "$file" --text text.txt -o never.gguf
  fails 1 plan "$file" --bits 4.5 --text text.txt -o never.json
  fails 1 sweep "$file" --text text.txt --html never.html
  fails 1 morph good.gguf never.gguf --to q4_0 --importance "$file"
  fails 1 morph good.gguf never.gguf --plan "$file"
  fails 1 train "$file" --data data.csv -o never.json
  fails 1 init "$file" -o never.json
  [ "$file" = text.txt ] || fails 1 train net.json --data "$file" -o never.json
done
fails 1 bench ./nowhere.gguf
fails 1 bench garbage.bin
fails 1 run good.gguf -f nowhere.txt
fails 1 run good.gguf -p hi --prompt-cache garbage.bin
fails 1 eval good.gguf --text empty
fails 1 eval good.gguf --text nowhere.txt
fails 1 train trained.json --data data.csv -o never.json --resume garbage.bin
fails 1 compare trained.json good.gguf
fails 1 forward trained.json --input data.csv -o never.safetensors
[ "$(id -u)" -eq 0 ] || fails 1 inspect locked.json

echo "== places that cannot be written" >>"$transcript"
for target in no/such/folder/out /proc/out; do
  fails 1 convert good.gguf "$target.gguf"
  fails 1 morph trained.json "$target.json" --to int8
  fails 1 train net.json --data data.csv -o "$target.json"
  fails 1 synth "$target.gguf" --type f16 --width 64 --blocks 1 --feed-forward 128 --heads 2 --kv-heads 2 --vocabulary 512
  fails 1 logits good.gguf --ids 1 -o "$target.safetensors"
  fails 1 calibrate good.gguf --text text.txt --ctx 64 -o "$target.gguf"
  fails 1 compare good.gguf folder --html "$target.html"
done
full() {
  local code=0
  "$program" "$@" >/dev/full 2>err </dev/null || code=$?
  { echo "\$ imago ${*@Q} > /dev/full"; cat err; } >>"$transcript"
  [ "$code" -eq 1 ] && grep -q 'No space left' err || complain "imago $* > /dev/full: exit code $code: $(cat err)"
}
full --help
full dtypes
full inspect good.gguf
full run good.gguf -p hi -n 4 -q
full man
full completion bash

# on_full_disk FOLDER: everything that writes, where there is room for next to nothing. The file that was there stays.
on_full_disk() {
  for name in old.gguf old.json; do echo precious >"$1/$name"; done
  fails 1 convert good.gguf "$1/old.gguf"
  fails 1 morph good.gguf "$1/old.gguf" --to q8_0 --pure
  fails 1 synth "$1/old.gguf" --width 256 --blocks 4 --feed-forward 512 --heads 4 --kv-heads 2 --vocabulary 2048
  fails 1 logits good.gguf --ids "$(seq -s, 1 200)" -o "$1/logits.safetensors"
  for name in old.gguf old.json; do
    [ "$(cat "$1/$name")" = precious ] || complain "a full disk cost the old $name"
  done
  [ "$(find "$1" -type f | wc -l)" -eq 2 ] || complain "a full disk is left with $(ls -A "$1")"
}
echo "== a limit on the size of files" >>"$transcript"
mkdir limited
( # the transcript goes through a pipe: it is a file too, and longer than the limit
  ulimit -f 32
  failures=0
  transcript=/dev/fd/3
  on_full_disk limited
  exit $failures
) 3> >(cat >>"$transcript") || failures=$((failures + $?))
if [ "$(id -u)" -eq 0 ] && mkdir disk && mount -t tmpfs -o size=64k tmpfs disk 2>/dev/null; then
  small_disk=$work/disk
  echo "== a disk that is full" >>"$transcript"
  on_full_disk disk
  umount "$small_disk" && small_disk=
fi

# interrupted ARGUMENT...: Ctrl-C after a while. It ends at once and leaves nothing, or a whole file: it was done before.
interrupted() {
  local code=0
  echo "\$ imago ${*@Q}   # Ctrl-C after $delay s" >>"$transcript"
  timeout --foreground --preserve-status -s INT "$delay" "$program" "$@" >out 2>err </dev/null || code=$?
  cat err >>"$transcript"
  case $code in 0 | 130) ;; *) complain "imago $*, stopped after $delay s: exit code $code: $(cat err)" ;; esac
  [ ! -s err ] || ! grep -qi 'terminate\|abort\|exception\|signal' err || complain "imago $*, stopped: $(cat err)"
  for left in $(find . -name 'stopped*'); do
    "$program" inspect "$left" >/dev/null 2>&1 || complain "imago $*, stopped after $delay s, leaves $left"
  done
  rm -rf out err stopped*
  no_debris "imago $*, stopped,"
}
echo "== Ctrl-C" >>"$transcript"
for delay in 0.02 0.1 0.4; do
  interrupted synth stopped.gguf --blocks 4
  interrupted convert good.gguf stopped.gguf
  interrupted morph good.gguf stopped.gguf --to q4_0
  interrupted train net.json --data data.csv --loss cross_entropy_logits --epochs 100000 -o stopped.json --state stopped.state --checkpoint-every 1000000000
  interrupted run good.gguf -p hi -n 10000 --ignore-eos -q
  interrupted eval good.gguf --text text.txt --ctx 128 -q
  interrupted bench kernels --format q4_0 -q
  interrupted calibrate good.gguf --text text.txt --ctx 64 -o stopped.gguf
  interrupted logits good.gguf --ids "$(seq -s, 1 250)" -o stopped.safetensors
done
count=$(grep -ac '^\$ imago' "$transcript" || true)
echo "walk: $count commands, $failures complaints" | tee -a "$transcript"
[ "$failures" -eq 0 ]
