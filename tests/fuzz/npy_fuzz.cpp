// SPDX-License-Identifier: MIT

// Any bytes as a .npy file: refused in one line, or an array that is what the file says and comes back the same when it is
// written. After an f the rest is a whole file, else a header's text and values that get a right beginning.

#include "../../examples/support/npy.hpp"
#include "fuzz/support.hpp"

#include <unistd.h>
#include <optional>
#include <string>

namespace {

using namespace poslsh::fuzz;
using poslsh_examples::FileError;
using poslsh_examples::NpyArray;

/// A folder of this process, gone at exit; in memory where there is such a place.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::error_code ignored;
    const std::filesystem::path memory("/dev/shm");
    path = (std::filesystem::is_directory(memory, ignored) ? memory : std::filesystem::temp_directory_path()) /
           ("poslsh_npy_fuzz." + std::to_string(getpid()));
    std::filesystem::create_directory(path);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

std::string file_of(const std::uint8_t* data, std::size_t size) {
  if (size > 0 && data[0] == 'f') return {data + 1, data + size};
  Bytes bytes(data, size);
  const int version = bytes.ConsumeIntegralInRange(1, 3);
  const std::string header = bytes.ConsumeRandomLengthString(300);
  std::string file(poslsh_examples::npy_detail::magic);
  file.push_back(static_cast<char>(version));
  file.push_back('\0');
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file.push_back(static_cast<char>(header.size() >> (8 * i) & 255));
  return file + header + bytes.ConsumeRemainingBytesAsString();
}

/// The array, or nothing where the file is refused.
std::optional<NpyArray> read(const std::filesystem::path& path) {
  try {
    return poslsh_examples::read_npy(path);
  } catch (const FileError& error) {
    const std::string text = error.what();
    require(text.starts_with(path.string() + ": ") && text.find('\n') == std::string::npos, "message: " + text);
    return std::nullopt;
  }
}

template <class T>
void check(const std::filesystem::path& path, const std::string& file, const NpyArray& array) {
  const auto& values = std::get<std::vector<T>>(array.values);
  std::size_t count = 1;
  for (const std::int64_t size : array.shape) {
    require(size >= 0, "a negative size");
    count *= static_cast<std::size_t>(size);
  }
  require(count == values.size(), "shape and values disagree");
  const auto same_bytes = [&](const void* other) {
    return values.empty() || std::memcmp(values.data(), other, count * sizeof(T)) == 0;
  };
  require(file.size() >= count * sizeof(T) && same_bytes(file.data() + file.size() - count * sizeof(T)),
          "the values are not those of the file");
  for (const T value : values) require(std::isfinite(value), "a value is not finite");

  poslsh_examples::write_npy<T>(path, array.shape, values);
  require((std::filesystem::file_size(path) - count * sizeof(T)) % 64 == 0, "written values are not aligned");
  require(!std::filesystem::exists(poslsh_examples::part_name(path)), "a part is left behind");
  const std::optional<NpyArray> again = read(path);
  require(again && again->shape == array.shape && again->values.index() == array.values.index() &&
              std::get<std::vector<T>>(again->values).size() == count &&
              same_bytes(std::get<std::vector<T>>(again->values).data()),
          "what was written reads back otherwise");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  static const std::filesystem::path given = folder.path / "given.npy", written = folder.path / "written.npy";
  const std::string file = file_of(data, size);
  std::ofstream(given, std::ios::binary).write(file.data(), static_cast<std::streamsize>(file.size()));
  const std::optional<NpyArray> array = read(given);
  if (!array) return 0;
  if (array->values.index() == 0)
    check<float>(written, file, *array);
  else
    check<double>(written, file, *array);
  return 0;
}
