// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// NumPy's .npy files: little-endian float32 or float64 in C order, format versions 1 to 3. Nothing else is
/// guessed at.

#include "output_file.hpp"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace poslsh_examples {

static_assert(std::endian::native == std::endian::little, "written for little-endian machines");

/// The values of a file, last index fastest, and their shape.
struct NpyArray {
  std::vector<std::int64_t> shape;
  std::variant<std::vector<float>, std::vector<double>> values;
};

/// "3 x 2 x 1024 x 64".
inline std::string describe_shape(std::span<const std::int64_t> shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text.empty() ? "a single value" : text;
}

namespace npy_detail {

inline constexpr std::string_view magic = "\x93NUMPY";
inline constexpr std::size_t max_header = 1 << 16;

/// Reads the header: a Python dictionary with the keys descr, fortran_order and shape, each once.
class HeaderParser {
 public:
  HeaderParser(const std::filesystem::path& path, std::string_view text) : path_(path), text_(text) {}

  void parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !descr)
        descr = quoted();
      else if (key == "fortran_order" && !fortran_order)
        fortran_order = boolean();
      else if (key == "shape" && !shape)
        shape = tuple();
      else
        fail("has an unknown or repeated key");
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("goes on after its dictionary");
    if (!descr || !fortran_order || !shape) fail("lacks descr, fortran_order or shape");
  }

  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;

 private:
  [[noreturn]] void fail(const std::string& what) const { throw FileError(path_, "the .npy header " + what); }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char wanted) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(std::string("is malformed: no ") + wanted + " where one is due");
  }
  std::string quoted() {
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) fail("is malformed: a string has no end");
    std::string word(text_.substr(at_, end - at_));
    at_ = end + 1;
    return word;
  }
  bool boolean() {
    skip_space();
    for (const std::string_view word : {"True", "False"})
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return word == "True";
      }
    fail("is malformed: fortran_order is neither True nor False");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    bool comma = true;
    expect('(');
    while (!accept(')')) {
      skip_space();
      std::int64_t size = -1;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (!comma || error != std::errc() || size < 0) fail("is malformed: shape is no tuple of sizes");
      at_ = static_cast<std::size_t>(end - text_.data());
      sizes.push_back(size);
      if (sizes.size() > 32) fail("has more than 32 dimensions");
      comma = accept(',');
    }
    if (sizes.size() == 1 && !comma) fail("is malformed: shape is no tuple of sizes");
    return sizes;
  }

  const std::filesystem::path& path_;
  std::string_view text_;
  std::size_t at_ = 0;
};

/// The number of values of a shape. \throws FileError if their bytes could not be counted
inline std::uint64_t element_count(const std::filesystem::path& path, std::span<const std::int64_t> shape) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 8;
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size > 0 && count > most / size)
      throw FileError(path, "the shape " + describe_shape(shape) + " is too large");
    count *= size;
  }
  return static_cast<std::uint64_t>(count);
}

template <class T>
std::vector<T> read_values(const std::filesystem::path& path, std::ifstream& file, std::uint64_t count) {
  std::vector<T> values(count);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));
  if (!file) throw FileError(path, "could not be read to its end");
  for (std::size_t i = 0; i < count; ++i)
    if (!std::isfinite(values[i]))
      throw FileError(path, "value " + std::to_string(i) + " is " +
                                (std::isnan(values[i]) ? "NaN" : "infinite") +
                                "; every value must be finite");
  return values;
}

}  // namespace npy_detail

/// Reads a whole file.
/// \throws FileError unless it is a complete .npy file as described above, of finite values, with nothing
/// after them
inline NpyArray read_npy(const std::filesystem::path& path) {
  using namespace npy_detail;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw FileError(path, "does not exist");
  if (!std::filesystem::is_regular_file(status)) throw FileError(path, "is not a regular file");
  const std::uint64_t file_size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) throw FileError(path, "cannot be opened");

  const auto take = [&](std::size_t count) {
    std::string bytes(count, '\0');
    if (!file.read(bytes.data(), static_cast<std::streamsize>(count)))
      throw FileError(path, "is not a .npy file: it ends inside the header");
    return bytes;
  };
  const std::string start = take(8);
  if (!start.starts_with(magic))
    throw FileError(path, "is not a .npy file: it does not begin with \\x93NUMPY");
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3 || start[7] != 0)
    throw FileError(path, ".npy version " + std::to_string(version) + "." +
                              std::to_string(static_cast<unsigned char>(start[7])) +
                              " is not 1.0, 2.0 or 3.0");
  std::size_t header_size = 0;
  const std::string size_bytes = take(version == 1 ? 2 : 4);
  for (std::size_t i = 0; i < size_bytes.size(); ++i)
    header_size |= std::size_t{static_cast<unsigned char>(size_bytes[i])} << (8 * i);
  if (header_size > max_header) throw FileError(path, "the .npy header is too long");
  const std::string header = take(header_size);
  HeaderParser parser(path, header);
  parser.parse();

  if (*parser.descr != "<f4" && *parser.descr != "<f8")
    throw FileError(path,
                    "holds values of another type than little-endian float32 ('<f4') or float64 ('<f8')");
  if (*parser.fortran_order) throw FileError(path, "is in Fortran order; it must be in C order");
  const std::uint64_t count = element_count(path, *parser.shape);
  const std::uint64_t value_bytes = count * (*parser.descr == "<f4" ? 4 : 8);
  const std::uint64_t held = file_size - std::min(file_size, static_cast<std::uint64_t>(file.tellg()));
  if (held != value_bytes)
    throw FileError(path, std::string(held < value_bytes ? "is truncated" : "has trailing bytes") +
                              ": the shape " + describe_shape(*parser.shape) + " takes " +
                              std::to_string(value_bytes) + " bytes of values, the file holds " +
                              std::to_string(held));
  NpyArray array{*parser.shape, {}};
  if (*parser.descr == "<f4")
    array.values = read_values<float>(path, file, count);
  else
    array.values = read_values<double>(path, file, count);
  return array;
}

/// Writes values in C order as a version 1.0 file, whole or not at all.
/// \throws FileError if it cannot
template <class T>
void write_npy(const std::filesystem::path& path, std::span<const std::int64_t> shape,
               std::span<const T> values) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  std::string sizes;
  for (const std::int64_t size : shape) sizes += std::to_string(size) + ", ";
  std::string header = std::string("{'descr': '<f") + (sizeof(T) == 4 ? "4" : "8") +
                       "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  // Magic, version and size take 10 bytes; the values begin at a multiple of 64.
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ').push_back('\n');
  std::string content(npy_detail::magic);
  content += {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  content += header;
  content.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  write_file(path, content);
}

}  // namespace poslsh_examples
