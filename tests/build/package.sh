#!/usr/bin/env bash
# Installs the package, moves it, and has another project use it in each way that is offered.
# Usage: CMAKE=cmake CXX=c++ package.sh SOURCE_FOLDER BUILD_FOLDER
set -euo pipefail

source=$1
scratch=$2/package
consumer=$source/tests/build/consumer
prefix=$scratch/moved

# consume NAME OPTION...: configures, builds and runs the other project.
consume() {
  local name=$1
  shift
  echo "-- $name"
  "$CMAKE" -S "$consumer" -B "$scratch/$name" "$@"
  "$CMAKE" --build "$scratch/$name"
  "$scratch/$name/consumer"
}

rm -rf "$scratch"
"$CMAKE" --install "$2" --prefix "$scratch/installed" >/dev/null
mv "$scratch/installed" "$prefix"
if grep -rF -e "$source" -e "$2" "$prefix"; then
  echo "the installed files name the folders they were built in"
  exit 1
fi

consume find_package -DCMAKE_PREFIX_PATH="$prefix"
consume add_subdirectory -DPOSLSH_SOURCE_DIR="$source"

echo "-- find_package of another minor version"
if "$CMAKE" -S "$consumer" -B "$scratch/version" -DCMAKE_PREFIX_PATH="$prefix" -DPOSLSH_WANTED=0.99 \
  >"$scratch/version.log" 2>&1 || ! grep -q 'version: 0\.[0-9.]*' "$scratch/version.log"; then
  echo "0.99 should be refused, and the version found named:"
  cat "$scratch/version.log"
  exit 1
fi

echo "-- pkg-config"
flags=$(PKG_CONFIG_PATH=$prefix/share/pkgconfig pkg-config --cflags --libs poslsh)
# shellcheck disable=SC2086  # several words
"$CXX" -std=c++20 "$consumer/main.cpp" $flags -o "$scratch/by_pkg_config"
"$scratch/by_pkg_config"
