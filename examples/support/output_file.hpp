// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Files that appear whole or not at all.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

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

/// Writes a whole file: to a temporary name first, then renamed.
/// \throws FileError if it cannot; nothing is left behind then
inline void write_file(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path part = part_name(path);
  errno = 0;
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (file) return publish_part(path);
  const std::string reason = errno != 0 ? std::strerror(errno) : "unknown reason";
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  throw FileError(path, "cannot be written: " + reason);
}

/// To be asked before a long computation whose result shall be written there; leaves no trace.
/// \throws FileError where write_file would
inline void check_writable(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw FileError(path, "cannot be written: it is a folder");
  errno = 0;
  const bool writable = std::ofstream(part_name(path), std::ios::trunc).is_open();
  const std::string reason = errno != 0 ? std::strerror(errno) : "unknown reason";
  if (!writable) throw FileError(path, "cannot be written: " + reason);
  std::filesystem::remove(part_name(path), ignored);
}

}  // namespace poslsh_examples
