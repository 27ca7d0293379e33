#!/usr/bin/env bash
# Installs the package, moves it, and has another project use it in each way that is offered; the same with the Debian
# package, where there are the tools to make one.
# Usage: CMAKE=cmake CXX=c++ package.sh SOURCE_FOLDER BUILD_FOLDER
set -euo pipefail

source=$1
build=$2
scratch=$build/package
consumer=$source/examples/consumer
prefix=$scratch/moved

# consume NAME OPTION...: configures, builds and runs the other project.
consume() {
  local name=$1
  shift
  echo "-- $name"
  "$CMAKE" -S "$consumer" -B "$scratch/$name" \
    -DCMAKE_PROJECT_consumer_INCLUDE="$source/tests/build/consumer_checks.cmake" "$@"
  "$CMAKE" --build "$scratch/$name"
  "$scratch/$name/consumer"
}

# consume_by_pkg_config NAME PREFIX
consume_by_pkg_config() {
  echo "-- $1"
  local flags
  flags=$(PKG_CONFIG_PATH=$2/share/pkgconfig pkg-config --cflags --libs poslsh)
  # shellcheck disable=SC2086  # several words
  "$CXX" -std=c++20 "$consumer/main.cpp" $flags -o "$scratch/$1"
  "$scratch/$1"
}

# names_no_folder FOLDER: no file in it names the folders it was built in.
names_no_folder() {
  if grep -rF -e "$source" -e "$build" "$1"; then
    echo "the installed files name the folders they were built in"
    exit 1
  fi
}

rm -rf "$scratch"
"$CMAKE" --install "$build" --prefix "$scratch/installed" >/dev/null
mv "$scratch/installed" "$prefix"
names_no_folder "$prefix"

consume find_package -DCMAKE_PREFIX_PATH="$prefix"
consume add_subdirectory -DPOSLSH_SOURCE_DIR="$source"
consume_by_pkg_config pkg_config "$prefix"

echo "-- find_package of another minor version"
mkdir "$scratch/version"
cat >"$scratch/version/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(version LANGUAGES CXX)
find_package(poslsh 0.99 REQUIRED)
END
if "$CMAKE" -S "$scratch/version" -B "$scratch/version" -DCMAKE_PREFIX_PATH="$prefix" >"$scratch/version.log" 2>&1 ||
  ! grep -q 'version: 0\.[0-9.]*' "$scratch/version.log"; then
  echo "0.99 should be refused, and the version found named:"
  cat "$scratch/version.log"
  exit 1
fi

echo "-- Debian package"
cpack=$(dirname "$(command -v "$CMAKE")")/cpack
if ! command -v "$cpack" >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "not checked: it takes cpack and dpkg-deb"
  exit 0
fi
# A loose umask must not reach the package.
(umask 002 && "$cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$scratch/cpack" >/dev/null)
package=$(echo "$scratch"/cpack/libposlsh-dev_*_all.deb)
dpkg-deb -I "$package" | tee "$scratch/control"
for field in 'Architecture: all' 'Section: libdevel' 'Depends: libeigen3-dev (>= 3.4)'; do
  grep -qxF " $field" "$scratch/control" || { echo "the package lacks: $field" && exit 1; }
done
# Lines such as: -rw-r--r-- root/root 1234 2026-01-01 00:00 ./usr/include/poslsh/poslsh.hpp
dpkg-deb -c "$package" >"$scratch/contents"
if grep -vE '^(d\S+ .* \./(usr/(include/)?)?|\S+ .* \./usr/(include/poslsh|share)/.*)$' "$scratch/contents"; then
  echo "the package holds files outside /usr/include/poslsh and /usr/share"
  exit 1
fi
if grep -vE '^(drwxr-xr-x|-rw-r--r--) root/root ' "$scratch/contents"; then
  echo "the package has owners or permissions other than the usual"
  exit 1
fi
# Installed beside no other package than the one it depends on; only root may give files to root.
system=$scratch/system
if ((EUID == 0)); then
  mkdir -p "$system/var/lib/dpkg/"{info,updates}
  dpkg-query -s libeigen3-dev >"$system/var/lib/dpkg/status"
  dpkg --root="$system" --log=/dev/null -i "$package"
else
  dpkg-deb -x "$package" "$system"
fi
names_no_folder "$system/usr"
# Every header is in, and nothing else beside them.
diff -r "$source/include/poslsh" "$system/usr/include/poslsh"
consume deb_find_package -DCMAKE_PREFIX_PATH="$system/usr"
consume_by_pkg_config deb_pkg_config "$system/usr"
if ((EUID == 0)); then
  dpkg --root="$system" --log=/dev/null -r libposlsh-dev
  if [[ -n $(find "$system/usr" -type f) ]]; then
    echo "removing the package leaves files"
    exit 1
  fi
fi
