// SPDX-License-Identifier: MIT

// StreamingAttention: any sequence of append, step, save and load, and of calls that are refused, against one long causal call of
// attention(). What is refused leaves no trace in the state; a damaged state is refused.

#include "fuzz/attention_inputs.hpp"
#include "support/streams.hpp"

#include <algorithm>
#include <optional>
#include <sstream>

namespace poslsh::fuzz {
namespace {

using test::Layer;
using test::StreamShape;
using test::Tensor;
using test::tokens_of;

/// Numbers within 2.
template <class T>
Tensor<T> noise_tensor(Index heads, Index tokens, Index features, Noise& noise) {
  Tensor<T> tensor(1, heads, tokens, features);
  for (T& value : tensor.storage()) value = static_cast<T>(noise());
  return tensor;
}

template <class T, class B, class S>
class Run {
 public:
  using Stream = StreamingAttention<T, B, S>;

  Run(Bytes& bytes, const StreamShape& shape, std::vector<B> biases, const AttentionOptions& options,
      std::optional<double> max_query_norm)
      : bytes_(bytes), shape_(shape), biases_(std::move(biases)), options_(options), bounded_(max_query_norm),
        noise_(bytes.ConsumeIntegral<std::uint8_t>()),
        layer_{noise_tensor<T>(shape.heads, shape.tokens, shape.head_dim, noise_),
               noise_tensor<T>(shape.key_heads, shape.tokens, shape.head_dim, noise_),
               noise_tensor<T>(shape.key_heads, shape.tokens, shape.value_dim, noise_)},
        out_(1, shape.heads, shape.tokens, shape.value_dim), asked_(static_cast<std::size_t>(shape.tokens)),
        stream_(std::in_place, biases_, shape.key_heads, shape.head_dim, shape.value_dim, options, max_query_norm) {
    for (Index places = bytes.ConsumeIntegral<std::uint8_t>() > 196 ? in_range(bytes, 1, 3) : 0; places > 0; --places) spoil();
  }

  void feed() {
    for (int calls = 0; calls < 60 && next_ < shape_.tokens && bytes_.remaining_bytes() > 0; ++calls) {
      switch (in_range(bytes_, 0, 9)) {
        case 7: reload(); break;
        case 8: refuse(); break;
        case 9: damage(); break;
        default: take(in_range(bytes_, 0, std::min<Index>(shape_.tokens - next_, bytes_.ConsumeBool() ? 3 : 500)));
      }
      require(stream_->position() == options_.key_offset + next_, "position");
      for (Index head = 0; head < shape_.key_heads; ++head)
        require(stream_->cached_tokens(head) >= 0 && stream_->cached_tokens(head) <= next_, "cached tokens");
    }
    compare();
  }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  void spoil() {
    static constexpr float numbers[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                        -std::numeric_limits<float>::infinity(), 3e38f};
    if (shape_.tokens == 0) return;
    const Index token = in_range(bytes_, 0, shape_.tokens - 1), head = in_range(bytes_, 0, shape_.key_heads - 1);
    const T number = static_cast<T>(bytes_.PickValueInArray(numbers));
    (bytes_.ConsumeBool() ? layer_.k : layer_.v).set_row(0, head, token, [&](Index) { return number; });
    hostile_.push_back(token);
  }

  /// The next tokens, by one call.
  void take(Index tokens) {
    const auto view = layer_.view();
    const auto k = tokens_of(view.k, next_, tokens), v = tokens_of(view.v, next_, tokens);
    next_ += tokens;
    if (bytes_.ConsumeIntegral<std::uint8_t>() > 216) return stream_->append(k, v);
    const Index queries = bytes_.ConsumeBool() ? tokens : in_range(bytes_, 0, tokens);
    stream_->step(tokens_of(view.q, next_ - queries, queries), k, v, tokens_of(out_.view(), next_ - queries, queries));
    for (Index i = next_ - queries; i < next_; ++i) asked_[at(i)] = true;
  }

  [[nodiscard]] std::string saved() const {
    std::ostringstream text;
    stream_->save(text);
    return text.str();
  }

  void reload() {
    const std::string state = saved();
    std::istringstream text(state);
    stream_.emplace(Stream::load(text, biases_));
    require(saved() == state, "a state that was loaded is another");
  }

  /// A state with a byte changed or its end missing.
  void damage() {
    std::string state = saved();
    const std::size_t place = bytes_.ConsumeIntegralInRange<std::size_t>(0, state.size() - 1);
    if (bytes_.ConsumeBool())
      state.resize(place);
    else
      state[place] = static_cast<char>(state[place] ^ bytes_.ConsumeIntegralInRange<int>(1, 255));
    std::istringstream text(state);
    try {
      static_cast<void>(Stream::load(text, biases_));
    } catch (const Error&) {
      return;
    }
    fail("a damaged state was loaded");
  }

  /// A call that does not fit in one of many ways.
  void refuse() {
    const std::string before = saved();
    const auto view = layer_.view();
    const Index tokens = std::min<Index>(shape_.tokens - next_, 3);
    TensorView<const T> q = tokens_of(view.q, next_, tokens);
    TensorView<const T> k = tokens_of(view.k, next_, tokens), v = tokens_of(view.v, next_, tokens);
    TensorView<T> out = tokens_of(out_.view(), next_, tokens);
    Tensor<T> large(1, shape_.heads, tokens, shape_.head_dim);
    large.fill(bytes_.ConsumeBool() ? T(100) : std::numeric_limits<T>::quiet_NaN());
    const Index wrong = in_range(bytes_, 0, 13);
    switch (wrong) {
      case 0: k.features += 1; break;
      case 1: v.features += 1; break;
      case 2: k.tokens = v.tokens = (Index{1} << 36) + 1, k.token_stride = v.token_stride = 0; break;
      case 3: k.heads += 1; break;
      case 4: v.heads = 0; break;
      case 5: v.tokens += 1; break;
      case 6: k.tokens = -1; break;
      case 7: q.tokens = k.tokens + 1; break;
      case 8: q.batch = 2; break;
      case 9: q.features += 1; break;
      case 10: out.tokens += 1; break;
      case 11: out.features += 1; break;
      case 12: out.heads = 0; break;
      default:
        if (!bounded_ || shape_.head_dim == 0 || tokens == 0) return;
        q = std::as_const(large).view();
    }
    const bool append = wrong <= 6 && bytes_.ConsumeBool();
    try {
      if (append)
        stream_->append(k, v);
      else
        stream_->step(q, k, v, out);
      fail("call " + std::to_string(wrong) + " that does not fit was taken");
    } catch (const Error&) {
    }
    require(saved() == before, "a refused call left a trace");
  }

  /// Every row that was asked for, against attention() over all tokens so far.
  void compare() const {
    const auto view = layer_.view();
    const double scale = options_.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<Index>(shape_.head_dim, 1))));
    const double score = std::abs(scale) * 4 * static_cast<double>(shape_.head_dim);
    AttentionOptions options = options_;
    options.causal = true;
    options.tolerance = 0;
    options.threads = 1;
    for (Index head = 0; head < shape_.heads; ++head) {
      const Index key_head = head / (shape_.heads / shape_.key_heads);
      const B& bias = biases_[at(head)];
      const Matrix<T> q = test::rows_of(view.q, 0, head).topRows(next_);
      const Matrix<S> k = test::rows_of(view.k, 0, key_head).topRows(next_).template cast<S>();
      const Matrix<S> v = test::rows_of(view.v, 0, key_head).topRows(next_).template cast<S>();
      const AttentionOutput<T> wanted = attention(q, k, v, bias, options);
      const Matrix<T> got = test::rows_of(std::as_const(out_).view(), 0, head);
      for (Index i = 0; i < next_; ++i) {
        if (!asked_[at(i)] || sees_hostile(bias, i)) continue;
        const double lse = wanted.log_sum_exp[i], logit = score + (std::isfinite(lse) ? std::abs(lse) : 0);
        const double rounding = 64 * static_cast<double>(std::numeric_limits<T>::epsilon()) * (1 + logit);
        require(test::distance(got.row(i), wanted.values.row(i)) <= rounding + (bounded_ ? 4 * options_.tolerance : 0),
                "row " + std::to_string(i) + " is not that of the long call");
      }
    }
  }

  [[nodiscard]] bool sees_hostile(const B& bias, Index query) const {
    const Index position = options_.key_offset + query;
    const KeyRange support = bias.support(position);
    const Index first = std::max<Index>(0, query - options_.window_left.value_or(query));
    return std::any_of(hostile_.begin(), hostile_.end(), [&](Index key) {
      return first <= key && key <= query && support.contains(options_.key_offset + key);
    });
  }

  Bytes& bytes_;
  StreamShape shape_;
  std::vector<B> biases_;
  AttentionOptions options_;
  bool bounded_;
  Noise noise_;
  Layer<T> layer_;
  Tensor<T> out_;
  std::vector<bool> asked_;
  std::vector<Index> hostile_;  ///< tokens
  std::optional<Stream> stream_;
  Index next_ = 0;
};

/// Options in any range make a stream or are an Error.
template <class T, class B, class S>
void make_any(Bytes& bytes, const std::vector<B>& biases) {
  const AttentionOptions options = any_options(bytes);
  const std::optional<double> norm = bytes.ConsumeBool() ? std::optional<double>(any_number<double>(bytes)) : std::nullopt;
  const Index key_heads = in_range(bytes, -1, 5), head_dim = any_index(bytes) & 0xfff, value_dim = in_range(bytes, -1, 3);
  const Index heads = static_cast<Index>(biases.size());
  const bool good_sizes = key_heads >= 1 && heads % key_heads == 0 && value_dim >= 0;
  const bool good = good_sizes && valid(options, 0, 0) && !options.query_offset && (!norm || (*norm >= 0 && std::isfinite(*norm)));
  bool made = false;
  try {
    const StreamingAttention<T, B, S> stream(biases, key_heads, head_dim, value_dim, options, norm);
    made = true;
  } catch (const Error&) {
  }
  require(made == good, made ? "a stream of invalid options" : "valid options are an Error");
}

template <class T, class B, class S = T>
void run(Bytes& bytes, AnyBias::Kind kind) {
  const Index key_heads = in_range(bytes, 1, 2), group = in_range(bytes, 1, 3);
  const bool is_long = bytes.ConsumeIntegral<std::uint8_t>() > 243;
  const auto features = [&] { return in_range(bytes, 0, is_long ? 1 : 9); };
  const Index tokens = in_range(bytes, 0, is_long ? 1500 : 40);
  const StreamShape shape{key_heads * group, key_heads, tokens, features(), features()};
  std::vector<B> biases;
  for (Index head = 0; head < shape.heads; ++head) {
    AnyBias bias = ordinary_bias(bytes);
    if (bias.kind != kind) bias = {kind, 0.25, 0.25, 9, {{20, 3, 1}, {70, 11, 0.5}}};
    bias.visit([&](const auto& one) {
      if constexpr (std::is_same_v<B, std::remove_cvref_t<decltype(one)>>) biases.push_back(one);
    });
  }
  if (bytes.ConsumeIntegral<std::uint8_t>() > 236) return make_any<T, B, S>(bytes, biases);
  AttentionOptions options = ordinary_options(bytes, 0, shape.tokens);
  options.query_offset.reset();
  std::optional<double> max_query_norm;
  if (bytes.ConsumeBool()) max_query_norm = 2 * std::sqrt(static_cast<double>(shape.head_dim));
  Run<T, B, S>(bytes, shape, std::move(biases), options, max_query_norm).feed();
}

}  // namespace
}  // namespace poslsh::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poslsh;
  using fuzz::AnyBias;
  fuzz::Bytes bytes(data, size);
  switch (fuzz::in_range(bytes, 0, 2)) {
    case 0: fuzz::run<double, AlibiBias>(bytes, AnyBias::alibi); break;
    case 1: fuzz::run<float, MeanMask>(bytes, AnyBias::mean_mask); break;
    default: fuzz::run<float, FixedBlocks, Eigen::bfloat16>(bytes, AnyBias::blocks);
  }
  return 0;
}
