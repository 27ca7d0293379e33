// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Files that appear whole or not at all.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace poslsh_examples {

/// A file that cannot be read or written as asked; the message is one line that names it.
class FileError : public std::runtime_error {
 public:
  FileError(const std::filesystem::path& path, const std::string& what)
      : std::runtime_error(path.string() + ": " + what) {}
};

/// Where a file is written until it is complete: beside it, so that the rename stays on one file system.
inline std::filesystem::path part_name(const std::filesystem::path& path) { return path.string() + ".part"; }

/// Moves a finished part to its place.
/// \throws FileError if it cannot
inline void publish_part(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::rename(part_name(path), path, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(part_name(path), ignored);
  throw FileError(path, "cannot be written: " + error.message());
}

/// Whether the name is that of a device, a pipe or the like: written as it is, never replaced by a file.
inline bool is_special(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

/// Writes a whole file: to a temporary name first, then renamed.
/// \throws FileError if it cannot; nothing is left behind then
inline void write_file(const std::filesystem::path& path, std::string_view content) {
  const bool special = is_special(path);
  const std::filesystem::path part = special ? path : part_name(path);
  errno = 0;
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (file) return special ? void() : publish_part(path);
  const std::string reason = errno != 0 ? std::strerror(errno) : "unknown reason";
  std::error_code ignored;
  if (!special) std::filesystem::remove(part, ignored);
  throw FileError(path, "cannot be written: " + reason);
}

/// To be asked before a long computation whose result shall be written there; leaves no trace.
/// \throws FileError where write_file would
inline void check_writable(const std::filesystem::path& path) {
  std::error_code ignored;
  if (path.empty()) throw FileError(path, "a file must have a name");
  if (std::filesystem::is_directory(path, ignored))
    throw FileError(path, "cannot be written: it is a folder");
  const bool special = is_special(path);
  errno = 0;
  const bool writable = std::ofstream(special ? path : part_name(path), std::ios::trunc).is_open();
  const std::string reason = errno != 0 ? std::strerror(errno) : "unknown reason";
  if (!writable) throw FileError(path, "cannot be written: " + reason);
  if (!special) std::filesystem::remove(part_name(path), ignored);
}

/// check_writable for all that a run writes; empty names are none. It must not write to one file twice, nor to what it
/// reads.
/// \throws FileError if it would
inline void check_outputs(const std::vector<std::filesystem::path>& outputs,
                          const std::vector<std::filesystem::path>& inputs = {}) {
  std::vector<std::filesystem::path> known;
  const auto take = [&](const std::filesystem::path& path) {
    if (path.empty()) return false;
    std::error_code ignored;  // made absolute first: of a name that does not exist nothing would be resolved
    const std::filesystem::path real = std::filesystem::weakly_canonical(std::filesystem::absolute(path), ignored);
    const bool again = std::find(known.begin(), known.end(), real) != known.end();
    known.push_back(real);
    return again && !is_special(path);
  };
  for (const std::filesystem::path& input : inputs) take(input);
  for (const std::filesystem::path& output : outputs)
    if (take(output)) throw FileError(output, "is named twice; what is written needs a file of its own");
  for (const std::filesystem::path& output : outputs)
    if (!output.empty()) check_writable(output);
}

/// To be called when all has been printed: what waits in the buffer of stdout goes out.
/// \throws FileError if something that was printed got lost, as on a full disk
inline void finish_printing() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw FileError("standard output", "cannot be written");
}

}  // namespace poslsh_examples
