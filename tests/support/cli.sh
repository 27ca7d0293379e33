# shellcheck shell=bash
# Sourced by tests of command lines, with the program as their first argument: $program and its $name, an empty folder to
# work in, and what a program may do.
program=$(realpath "$1")
name=$(basename "$program")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0

fail() {
  printf 'FAILED: %s\n' "$*"
  failures=$((failures + 1))
}

# refuse WORDS ARGUMENT...: exit code 2, nothing on stdout, one line on stderr that begins with the name and has WORDS.
refuse() {
  local words=$1 code
  shift
  "$program" "$@" >out 2>err
  code=$?
  ((code == 2)) || fail "$name $*: exit code $code"
  [[ ! -s out ]] || fail "$name $*: output on stdout"
  [[ $(wc -l <err) -eq 1 && $(tail -c1 err) == "" ]] || fail "$name $*: not one line: $(cat err)"
  [[ $(cat err) == "$name: "*"$words"* ]] || fail "$name $*: '$words' is not in: $(cat err)"
}

# accept ARGUMENT...: exit code 0, nothing on stderr; the output is in the file out.
accept() {
  local code
  "$program" "$@" >out 2>err
  code=$?
  ((code == 0)) || fail "$name $*: exit code $code: $(cat err)"
  [[ ! -s err ]] || fail "$name $*: output on stderr: $(cat err)"
}

# finish: what the test ends with.
finish() {
  printf '%d failures\n' "$failures"
  ((failures == 0))
}
