// SPDX-License-Identifier: MIT

// StreamingAttention::load on any bytes, and on saved states with edits whose checksums are made right again: an Error, or a
// stream that goes on, saves, and has the same bits when that is loaded. Memory stays near the size of the state.

#include "fuzz/numbers.hpp"
#include "support/streams.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace poslsh;
using namespace poslsh::fuzz;
using poslsh::test::same_numbers;

/// Takes a state, and where each of its numbers or rows begins.
class Places : public std::stringbuf {
 public:
  Places() : std::stringbuf(std::ios::out) {}
  std::vector<std::size_t> begins;

 private:
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    begins.push_back(str().size());
    return std::stringbuf::xsputn(text, count);
  }
};

/// An edit at any place, mostly where a number begins: bytes set to a number, inserted or left out.
void edit(Bytes& bytes, std::string& state, const std::vector<std::size_t>& begins) {
  constexpr Index sizes[] = {0, 1, 2, 3, -1, 383, 384, 385, 1 << 20, Index{1} << 52, -(Index{1} << 52), Index{1} << 62};
  std::size_t at = begins[static_cast<std::size_t>(in_range(bytes, 0, static_cast<Index>(begins.size()) - 1))];
  if (at > state.size() || bytes.ConsumeIntegralInRange(0, 3) == 0)
    at = static_cast<std::size_t>(in_range(bytes, 0, static_cast<Index>(state.size())));
  const auto set = [&](const auto& value) {
    if (at + sizeof value <= state.size()) std::memcpy(state.data() + at, &value, sizeof value);
  };
  switch (bytes.ConsumeIntegralInRange(0, 6)) {
    case 0:
      return set(bytes.ConsumeIntegral<std::uint8_t>());
    case 1:
      return set(bytes.PickValueInArray(sizes));
    case 2:
      return set(in_range(bytes, -8, 400));
    case 3:
      return set(any_double(bytes));
    case 4:
      return set(bytes.ConsumeIntegral<std::uint64_t>());
    case 5:
      state.insert(at, static_cast<std::size_t>(in_range(bytes, 0, 40)), '\1');
      return;
    default:
      state.erase(at, static_cast<std::size_t>(in_range(bytes, 0, 40)));
  }
}

template <class Stream>
std::string saved(const Stream& stream) {
  std::ostringstream out;
  stream.save(out);
  return out.str();
}

/// The stream, or nothing where the state is refused. A checksum is repaired where the reader found it wrong.
template <class Stream, class B>
std::optional<Stream> load(std::string& state, const std::vector<B>& biases, bool repair) {
  for (int seals = 0; seals < 20; ++seals) {
    std::istringstream in(state);
    try {
      return Stream::load(in, biases);
    } catch (const Error& error) {
      const std::string text = error.what();
      require(text.starts_with("poslsh: ") && text.find('\n') == std::string::npos, "message: " + text);
      if (!repair || !text.starts_with("poslsh: checksum of the saved state")) return std::nullopt;
      const auto at = static_cast<std::size_t>(in.tellg()) - sizeof(std::uint64_t);
      detail::Checksum sum;
      sum.add(state.data(), at);
      const std::uint64_t value = sum.value();
      std::memcpy(state.data() + at, &value, sizeof value);
    }
  }
  fail("a checksum is wrong after it was repaired");
}

struct Shape {
  Index heads, key_heads, head_dim, value_dim;
};

/// Feeds one call of `tokens` tokens. The values of the outputs, or nothing where the call is refused, which changes nothing.
template <class T, class B, class S>
std::optional<Matrix<T>> step(StreamingAttention<T, B, S>& stream, const Shape& shape, Index tokens, std::uint64_t seed) {
  const auto layer = test::normal_stream<T>({shape.heads, shape.key_heads, tokens, shape.head_dim, shape.value_dim}, seed);
  test::Tensor<T> out(1, shape.heads, tokens, shape.value_dim);
  const std::string before = saved(stream);
  try {
    stream.step(layer.view().q, layer.view().k, layer.view().v, out.view());
  } catch (const Error&) {
    require(saved(stream) == before, "a refused step changes the stream");
    return std::nullopt;
  }
  Matrix<T> values(shape.heads * tokens, shape.value_dim);
  for (Index head = 0; head < shape.heads; ++head)
    values.middleRows(head * tokens, tokens) = test::rows_of(out.view(), 0, head);
  return values;
}

/// What the stream takes, if an edit has changed it: by asking with no tokens. Large ones are not looked for.
template <class T, class B, class S>
std::optional<Shape> shape_of(StreamingAttention<T, B, S>& stream, const Shape& likely) {
  const auto takes = [&](const Shape& shape) {
    const test::Tensor<T> k(1, shape.key_heads, 0, shape.head_dim), v(1, shape.key_heads, 0, shape.value_dim);
    try {
      stream.append(k.view(), v.view());
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  if (takes(likely)) return likely;
  for (Index key_heads = 1; key_heads <= likely.heads; ++key_heads)
    for (Index head_dim = 0; head_dim <= 4; ++head_dim)
      for (Index value_dim = 0; value_dim <= 4; ++value_dim)
        if (const Shape shape{likely.heads, key_heads, head_dim, value_dim}; takes(shape)) return shape;
  return std::nullopt;
}

template <class T, class B, class S>
void go_on(StreamingAttention<T, B, S>& stream, const std::vector<B>& biases, const Shape& likely, Bytes& bytes) {
  using Stream = StreamingAttention<T, B, S>;
  const std::optional<Shape> shape = shape_of(stream, likely);
  std::string state = saved(stream);
  std::optional<Stream> again = load<Stream>(state, biases, false);
  require(again && saved(*again) == state, "a loaded stream does not save as one that loads");
  if (!shape) return;
  for (std::uint64_t call = 0; call < 3; ++call) {
    const Index tokens = in_range(bytes, 0, 3);
    const auto got = step(stream, *shape, tokens, call), expected = step(*again, *shape, tokens, call);
    require(got.has_value() == expected.has_value() && (!got || same_numbers(*got, *expected)),
            "two streams of one state go on otherwise");
  }
  require(saved(stream) == saved(*again), "two streams of one state end otherwise");
}

template <class T, class S, class B>
void check(const std::vector<B>& biases, Bytes& bytes) {
  using Stream = StreamingAttention<T, B, S>;
  const Shape shape{static_cast<Index>(biases.size()), bytes.ConsumeBool() ? 1 : 2, in_range(bytes, 0, 4),
                    in_range(bytes, 0, 4)};
  AttentionOptions options;
  if (bytes.ConsumeBool()) options.key_offset = std::clamp(any_position(bytes), -(Index{1} << 52), Index{1} << 52);
  if (bytes.ConsumeBool()) options.window_left = in_range(bytes, 0, 10);
  if (bytes.ConsumeBool()) options.softcap = 2;
  options.tolerance = 0.1;
  Stream stream(biases, shape.key_heads, shape.head_dim, shape.value_dim, options,
                bytes.ConsumeBool() ? std::optional<double>(100.0) : std::nullopt);
  for (Index calls = in_range(bytes, 0, 2); calls > 0; --calls) step(stream, shape, in_range(bytes, 0, 20), 9);

  Places places;
  std::ostream out(&places);
  stream.save(out);
  const std::string whole = places.str();
  std::string state = whole;
  const bool any_bytes = bytes.ConsumeBool();
  for (Index edits = in_range(bytes, 0, 6); !any_bytes && edits > 0; --edits) edit(bytes, state, places.begins);
  if (any_bytes) state = bytes.ConsumeRandomLengthString(300);
  std::optional<Stream> loaded = load<Stream>(state, biases, !any_bytes);
  require(loaded || state != whole, "a saved state is refused");
  if (loaded) {
    require(loaded->bytes() <= 4096 * state.size(), "far more memory than state");
    go_on(*loaded, biases, shape, bytes);
  }
  require(saved(stream) == whole, "loading has changed another stream");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<MeanMask> masks{MeanMask(draw_hashes(LaplaceKernel{3}, 8, 1)),
                                           MeanMask(draw_hashes(LaplaceKernel{20}, 8, 2))};
  Bytes bytes(data, size);
  switch (bytes.ConsumeIntegralInRange(0, 3)) {
    case 0:
      check<float, float>(std::vector<AlibiBias>{{0.5}, {3}}, bytes);
      break;
    case 1:
      check<float, Eigen::half>(masks, bytes);
      break;
    case 2:
      check<double, double>(std::vector<FixedBlocks>{{7}, {100}}, bytes);
      break;
    default:
      check<float, Eigen::bfloat16>(std::vector<NoBias>(2), bytes);
  }
  return 0;
}
