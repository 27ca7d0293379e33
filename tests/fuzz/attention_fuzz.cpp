// SPDX-License-Identifier: MIT

// attention(), blockwise_attention() and attention_backward() of one head: any shape, place in memory, option and bias.
// Ordinary numbers are held against the definition; of hostile ones no trace may be left where they are not seen; what the
// contract forbids is an Error, and nothing else is.

#include "fuzz/attention_checks.hpp"
#include "fuzz/placed_inputs.hpp"
#include "poslsh/attention/backward.hpp"
#include "poslsh/attention/blockwise.hpp"

#include <optional>

namespace poslsh::fuzz {
namespace {

using test::infinity;
using test::same_bits;

constexpr double ordinary_limit = 1e10;  ///< of what sums and products in float can take in any number

/// One call, and all that is asked of its result.
template <class T, class S>
class Call {
 public:
  Call(Bytes& bytes, Shape shape, AttentionOptions options, AnyBias bias)
      : bytes_(bytes), shape_(shape), options_(std::move(options)), bias_(std::move(bias)),
        data_(shape, bytes.ConsumeIntegral<std::uint8_t>()) {}

  /// Ordinary numbers: what the definition says, however the inputs lie and whatever the threads.
  void hold_against_definition() {
    const BiasFunctions functions = bias_.functions();
    AttentionOptions said = options_;
    if (shape_.head_dim == 0) said.scale = 1;  // of a score of 0; the definition's own is infinite
    const Matrix<T> k = data_.k.template cast<T>(), v = data_.v.template cast<T>();
    const Dense<T> dense(data_.q, k, v, functions, said);
    const AttentionOutput<T> got = attend(data_, true);
    dense.require_right(got, options_.tolerance, 1, "attention");
    require_sound(got);
    if (bias_.kind == AnyBias::mean_mask) {
      dense.require_right(blockwise(data_, Merge::ratio), 0, 4, "blockwise_attention");
      const auto exact = test::dense_mean_of_draws<test::Wide<T>>(data_.q, k, v, bias_.hashes, said);
      const auto naive = test::dense_mean_of_draws<T>(data_.q, k, v, bias_.hashes, said);
      Dense<T>(dense, exact, naive).require_right(blockwise(data_, Merge::mean), 0, 4, "the mean of draws");
      if constexpr (std::is_same_v<T, S>)
        dense.require_right(
            blockwise_attention(data_.q, data_.k, data_.v, bias_.hashes, options_, Merge::ratio,
                                [](const auto& q, const auto& keys, const auto& values, const AttentionOptions& options) {
                                  return attention(q, keys, values, NoBias{}, options);
                                }),
            0, 4, "blockwise_attention by the caller's kernel");
    }
    differentiate(got, true);
  }

  /// Hostile numbers at some places: rows that do not see them are as if they were not there.
  void hide_hostile_rows() {
    for (Index places = in_range(bytes_, 0, 6); places > 0; --places)
      switch (in_range(bytes_, 0, 2)) {
        case 0: spoil(data_.q); break;
        case 1: spoil(data_.k); break;
        default: spoil(data_.v);
      }
    Data<T, S> zeroed = data_;
    const std::vector<bool> q = calm_rows(data_.q, zeroed.q);
    const std::vector<bool> k = calm_rows(data_.k, zeroed.k), v = calm_rows(data_.v, zeroed.v);
    std::vector<bool> clean = q;
    bool all_calm = true;
    for (const bool calm_row : q) all_calm = all_calm && calm_row;
    for (Index j = 0; j < shape_.keys; ++j) {
      if (k[at(j)] && v[at(j)]) continue;
      all_calm = false;
      for (Index i = 0; i < shape_.queries; ++i)
        if (visible()(i, j)) clean[at(i)] = false;
    }
    const AttentionOutput<T> got = attend(data_, true), expected = attend(zeroed, false);
    require_sound(got);
    require_same_where(clean, got, expected, "attention");
    if (all_calm) require_within_values(got);
    differentiate(got, false);
    if (bias_.kind != AnyBias::mean_mask) return;
    for (const Merge merge : {Merge::ratio, Merge::mean})
      require_same_where(clean, blockwise(data_, merge), blockwise(zeroed, merge), "blockwise_attention");
  }

  /// Options and biases in any range: an Error where the contract says so, else a result of the right shape.
  void ask_for_errors() {
    const Index wrong = in_range(bytes_, 0, 9);
    if (wrong == 1) data_.k.conservativeResize(shape_.keys, shape_.head_dim + 1);
    if (wrong == 2) data_.v.conservativeResize(shape_.keys + 1, shape_.value_dim);
    const bool good_call = wrong != 1 && wrong != 2 && valid(options_, shape_.queries, shape_.keys);
    const auto got = unless_error([&] { return attend(data_, false); });
    require(got.has_value() == (good_call && bias_.valid()), got ? "invalid arguments were taken" : "valid arguments are an Error");
    if (got) {
      require_sound(*got);
      differentiate(*got, false);
      auto other = *got;
      if (bytes_.ConsumeBool())
        other.values.conservativeResize(shape_.queries + 1, shape_.value_dim);
      else
        other.log_sum_exp.conservativeResize(shape_.queries + 1);
      require(!unless_error([&] { return gradients(other, got->values); }), "a forward output of another shape was taken");
    }
    AnyBias hashes = bias_;
    hashes.kind = AnyBias::mean_mask;
    const Merge merge = bytes_.ConsumeBool() ? Merge::ratio : Merge::mean;
    const auto in_blocks = unless_error([&] { return blockwise(data_, merge); });
    require(in_blocks.has_value() == (good_call && hashes.valid()),
            in_blocks ? "invalid hashes were taken" : "valid hashes are an Error");
  }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  /// What a call gives, or nothing where it throws Error; anything else it throws ends the run.
  template <class Function>
  static auto unless_error(Function&& call) -> std::optional<decltype(call())> {
    try {
      return call();
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  [[nodiscard]] AttentionOutput<T> blockwise(const Data<T, S>& data, Merge merge) const {
    return blockwise_attention(data.q, data.k, data.v, bias_.hashes, options_, merge);
  }

  /// Attention of matrices; if `anywhere`, also of the same elsewhere in memory, and by one thread: the same bits.
  AttentionOutput<T> attend(const Data<T, S>& data, bool anywhere) {
    std::optional<AttentionOutput<T>> got;
    bias_.visit([&](const auto& bias) {
      got = attention(data.q, data.k, data.v, bias, options_);
      if (!anywhere) return;
      PlacedInputs<T, S> placed(data, bytes_);
      AttentionOptions alone = options_;
      alone.threads = 1;
      AttentionOutput<T> elsewhere{Matrix<T>(shape_.queries, shape_.value_dim), Vector<double>(shape_.queries)};
      auto into = placed.output();  // perhaps over an input
      attention_into(placed.q(), placed.k(), placed.v(), bias, alone, into, elsewhere.log_sum_exp);
      elsewhere.values = into;
      require(same_bits(*got, elsewhere), "other bits elsewhere in memory, or by one thread");
    });
    return *got;
  }

  AttentionGradients<T> gradients(const AttentionOutput<T>& forward, const Matrix<T>& d_values) const {
    std::optional<AttentionGradients<T>> all;
    bias_.visit([&](const auto& bias) {
      all = attention_backward(data_.q, data_.k, data_.v, forward, d_values, bias, options_);
    });
    return *all;
  }

  /// The backward pass: shapes, and of ordinary numbers finite gradients, 0 where nothing was seen.
  void differentiate(const AttentionOutput<T>& forward, bool ordinary) {
    const Matrix<T> d_values = noise_matrix<T>(shape_.queries, shape_.value_dim, 77);
    const AttentionGradients<T> got = gradients(forward, d_values);
    const auto shaped = [](const Matrix<T>& gradient, Index rows, Index cols) {
      return gradient.rows() == rows && gradient.cols() == cols;
    };
    require(shaped(got.dq, shape_.queries, shape_.head_dim) && shaped(got.dk, shape_.keys, shape_.head_dim) &&
                shaped(got.dv, shape_.keys, shape_.value_dim),
            "shape of a gradient");
    if (!ordinary) return;
    require(got.dq.allFinite() && got.dk.allFinite() && got.dv.allFinite() && std::isfinite(got.dslope) &&
                std::isfinite(got.dright_slope) && std::isfinite(got.dsink),
            "a gradient of ordinary numbers is not finite");
    for (Index i = 0; i < shape_.queries; ++i)
      require(sees_any(i) || (got.dq.row(i).array() == 0).all(), "a row without keys has a gradient");
    for (Index j = 0; j < shape_.keys; ++j)
      require(is_seen(j) || ((got.dk.row(j).array() == 0).all() && (got.dv.row(j).array() == 0).all()),
              "a key that no query sees has a gradient");
  }

  bool sees_any(Index query) { return shape_.keys > 0 && visible().row(query).any(); }
  bool is_seen(Index key) { return shape_.queries > 0 && visible().col(key).any(); }
  const Mask& visible() {
    if (!visible_) visible_ = test::visible_pairs(shape_.queries, shape_.keys, bias_.functions(), options_);
    return *visible_;
  }

  /// Shapes are right; a row without keys is 0, its log-sum-exp that of the sink.
  void require_sound(const AttentionOutput<T>& got) {
    require(got.values.rows() == shape_.queries && got.values.cols() == shape_.value_dim, "shape of the values");
    require(got.log_sum_exp.size() == shape_.queries, "size of log_sum_exp");
    for (Index i = 0; i < shape_.queries; ++i)
      require(sees_any(i) ||
                  ((got.values.row(i).array() == 0).all() && got.log_sum_exp[i] == options_.sink.value_or(-infinity)),
              "a row without keys is not empty");
  }

  /// Outputs are finite, and means of visible values.
  void require_within_values(const AttentionOutput<T>& got) {
    require(got.values.allFinite(), "values of moderate inputs are not finite");
    const double unit = 4 * static_cast<double>(shape_.keys + 4) * static_cast<double>(std::numeric_limits<T>::epsilon());
    for (Index i = 0; i < shape_.queries; ++i)
      for (Index f = 0; f < shape_.value_dim; ++f) {
        const bool sink = options_.sink.value_or(-infinity) > -infinity || !sees_any(i);
        double low = sink ? 0 : infinity, high = sink ? 0 : -infinity;
        for (Index j = 0; j < shape_.keys; ++j) {
          if (!visible()(i, j)) continue;
          low = std::min(low, static_cast<double>(data_.v(j, f)));
          high = std::max(high, static_cast<double>(data_.v(j, f)));
        }
        const double value = static_cast<double>(got.values(i, f)), slack = unit * std::max(std::abs(low), std::abs(high));
        require(value >= low - slack && value <= high + slack, "an output lies outside the values");
      }
  }

  void require_same_where(const std::vector<bool>& clean, const AttentionOutput<T>& got, const AttentionOutput<T>& expected,
                          const char* what) const {
    for (Index i = 0; i < shape_.queries; ++i) {
      if (!clean[at(i)]) continue;
      const AttentionOutput<T> row{got.values.row(i), got.log_sum_exp.segment(i, 1)};
      const AttentionOutput<T> wanted{expected.values.row(i), expected.log_sum_exp.segment(i, 1)};
      if (same_bits(row, wanted)) continue;
      // What is skipped may depend on what other rows see.
      const double spread = 2 * options_.tolerance * (2 * ordinary_limit);
      const double lse_spread = 2 * std::log1p(options_.tolerance) + 1e-12 * (1 + std::abs(wanted.log_sum_exp[0]));
      require(options_.tolerance > 0 && test::distance(row.values, wanted.values) <= spread &&
                  test::distance(row.log_sum_exp, wanted.log_sum_exp) <= lse_spread,
              std::string("hostile rows left a trace in ") + what);
    }
  }

  template <class M>
  void spoil(M& matrix) {
    if (matrix.size() == 0) return;
    const Index place = in_range(bytes_, 0, matrix.size() - 1);
    matrix.data()[place] = static_cast<typename M::Scalar>(any_number<T>(bytes_));
  }

  /// Which rows are ordinary; the others become zeros in `zeroed`.
  template <class M>
  static std::vector<bool> calm_rows(const M& matrix, M& zeroed) {
    std::vector<bool> calm;
    for (Index i = 0; i < matrix.rows(); ++i) {
      calm.push_back(true);
      for (Index t = 0; t < matrix.cols(); ++t)
        if (!(std::abs(static_cast<double>(matrix(i, t))) <= ordinary_limit)) calm.back() = false;
      if (!calm.back()) zeroed.row(i).setZero();
    }
    return calm;
  }

  Bytes& bytes_;
  Shape shape_;
  AttentionOptions options_;
  AnyBias bias_;
  Data<T, S> data_;
  std::optional<Mask> visible_;
};

template <class T, class S = T>
void run(Bytes& bytes) {
  const Index kind = in_range(bytes, 0, 3);
  const Shape shape = shape_from(bytes);
  if (kind == 3) return Call<T, S>(bytes, shape, any_options(bytes), any_bias(bytes)).ask_for_errors();
  AttentionOptions options = ordinary_options(bytes, shape.queries, shape.keys);
  AnyBias bias = ordinary_bias(bytes);
  if (kind == 0) return Call<T, S>(bytes, shape, options, bias).hold_against_definition();
  if (bytes.ConsumeIntegral<std::uint8_t>() > 224) options.query_offset = in_range(bytes, -(Index{1} << 52), Index{1} << 52);
  Call<T, S>(bytes, shape, options, bias).hide_hostile_rows();
}

}  // namespace
}  // namespace poslsh::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  poslsh::fuzz::Bytes bytes(data, size);
  poslsh::fuzz::run<float>(bytes);
  return 0;
}
