#!/usr/bin/env bash
# Every relative link and image of README.md, docs/ and examples/ points to a file that is there and, with an #anchor,
# to a heading of that page, in GitHub's form. No network.
# Usage: links_test.sh [ROOT]
set -euo pipefail
shopt -s globstar nullglob

root=$(cd "${1-$(dirname "${BASH_SOURCE[0]}")/../..}" && pwd -P)
cd "$root"
failed=0
count=0

# links PAGE: a line for each, its line number, a tab and its target. Code is not looked at.
links() {
  awk '
    /^[ \t]*(```|~~~)/ { code = !code; next }
    code { next }
    {
      gsub(/`[^`]*`/, "")
      if ($0 ~ /^\[[^]]*\]:[ \t]/) {  # [name]: target
        sub(/^\[[^]]*\]:[ \t]+/, "")
        sub(/[ \t].*/, "")
        print FNR "\t" $0
        next
      }
      while (match($0, /\]\([^)]*\)/)) {
        target = substr($0, RSTART + 2, RLENGTH - 3)
        $0 = substr($0, RSTART + RLENGTH)
        sub(/^[ \t]+/, "", target)
        sub(/[ \t]+["\047(].*$/, "", target)  # a title
        gsub(/^<|>$/, "", target)
        print FNR "\t" target
      }
    }' "$1"
}

# anchors PAGE: those of its headings; equal ones are numbered.
anchors() {
  awk '
    /^[ \t]*(```|~~~)/ { code = !code; next }
    code || !/^ ? ? ?#+[ \t]/ { next }
    {
      sub(/^[ \t]*#+[ \t]+/, "")
      sub(/[ \t]+#*[ \t]*$/, "")
      while (match($0, /\]\([^)]*\)/)) $0 = substr($0, 1, RSTART - 1) substr($0, RSTART + RLENGTH)
      $0 = tolower($0)
      gsub(/[][!"#$%&\047()*+,.\/:;<=>?@\\^`{|}~]/, "")
      gsub(/ /, "-")
      print $0 (seen[$0]++ ? "-" seen[$0] - 1 : "")
    }' "$1"
}

broken() {
  echo "$1:$2: $3: $4"
  failed=$((failed + 1))
}

for page in README.md docs/**/*.md examples/**/*.md; do
  while IFS=$'\t' read -r line target; do
    [[ $target =~ ^[A-Za-z][A-Za-z0-9+.-]*: || $target == //* ]] && continue
    count=$((count + 1))
    path=${target%%#*}
    anchor=
    [[ $target == *'#'* ]] && anchor=${target#*#}
    file=$page
    [[ -n $path ]] && file=$(realpath -m --relative-to=. "$(dirname "$page")/$path")
    if [[ -z $target || $target == /* || $file == ../* ]]; then
      broken "$page" "$line" "$target" "not a path inside the project"
    elif [[ ! -e $file ]]; then
      broken "$page" "$line" "$target" "no such file"
    elif [[ $target == *'#'* ]]; then
      if [[ $file != *.md ]]; then
        [[ $anchor =~ ^L[0-9]+(-L[0-9]+)?$ ]] || broken "$page" "$line" "$target" "only pages have headings"
      elif ! anchors "$file" | grep -qxF -e "$anchor"; then
        broken "$page" "$line" "$target" "no such heading"
      fi
    fi
  done < <(links "$page")
done
echo "$count links, $failed broken"
((count > 0 && failed == 0))
