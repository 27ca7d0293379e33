# shellcheck shell=bash
# Sourced by the scripts that build something.
# need PACKAGE...: installs the Debian or Ubuntu packages that are missing; says how if it may not.
need() {
  local missing=() package become=()
  if ! command -v dpkg-query >/dev/null; then
    echo "Not a Debian system: taking for granted what these packages hold: $*" >&2
    return 0
  fi
  for package; do
    [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) == ii* ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null; then
      echo "Packages are missing. Please run: sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    become=(sudo -n)
  fi
  "${become[@]}" apt-get update -q
  "${become[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qy --no-install-recommends "${missing[@]}"
}
