// SPDX-License-Identifier: MIT

// Sizes beyond what 32 bits count: lengths, strides, numbers of values.

#include "poslsh/attention/blockwise.hpp"
#include "poslsh/model/multi_head_backward.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/heads.hpp"

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace sizes_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::attention_backward;
using poslsh::AttentionGradients;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::draw_hashes;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;
using poslsh::multi_head_attention;
using poslsh::multi_head_attention_backward;
using poslsh::NoBias;
using poslsh::PositionHash;
using poslsh::TensorView;

namespace {

template <class T>
constexpr double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());

}  // namespace

TEMPLATE_LIST_TEST_CASE("numbers: lengths across 46341 and 65536, 2^31 and 2^32 pairs of queries and keys", "", Scalars) {
  const Index longest = 65560, block = 8;
  const Inputs<TestType> all = normal_inputs<TestType>(longest, longest, 3, 2, 1);
  const double unit = 64 * epsilon<TestType>;
  const AttentionOptions causal{.causal = true};
  const AttentionOutput<TestType> whole = attention(all.q, all.k, all.v, FixedBlocks{block}, causal);
  const auto gradients = attention_backward(all.q, all.k, all.v, whole, all.v, FixedBlocks{block}, causal);
  const auto part = [](const Matrix<TestType>& rows, Index first, Index count) { return rows.middleRows(first, count).eval(); };
  double values = 0, sums = 0;
  for (Index first = 0; first < longest; first += block) {  // a block is a call of its own
    const auto exact = dense_attention<Wide<TestType>>(part(all.q, first, block), part(all.k, first, block),
                                                       part(all.v, first, block), NoBias{}, causal);
    values = std::max(values, distance(part(whole.values, first, block), exact.values));
    sums = std::max(sums, distance(whole.log_sum_exp.segment(first, block), exact.log_sum_exp));
  }
  REQUIRE(values < unit);
  REQUIRE(sums < unit);
  for (const Index first : {Index{0}, Index{32760}, Index{46336}, Index{65528}, longest - 24}) {
    const AttentionGradients<TestType> got{part(gradients.dq, first, 24), part(gradients.dk, first, 24),
                                           part(gradients.dv, first, 24)};
    const auto exact =
        dense_gradients<Wide<TestType>>(part(all.q, first, 24), part(all.k, first, 24), part(all.v, first, 24),
                                        part(all.v, first, 24), FixedBlocks{block}, causal);
    CAPTURE(first);
    REQUIRE(gradient_fault(got, exact, false) == "");
  }

  // The rows of shorter calls are the same, and so are those that see their neighbours through masks and slopes.
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{3}, 4, 2);
  for (const Index n : {46340, 46341, 65535, 65536, 65537}) {
    const Matrix<TestType> q = all.q.topRows(n), k = all.k.topRows(n), v = all.v.topRows(n);
    CAPTURE(n);
    REQUIRE(distance(attention(q, k, v, FixedBlocks{block}, causal).values, whole.values.topRows(n)) < unit);
    const Index window = 20, first = n - 40, front = first - window;
    const AttentionOptions near{.causal = true, .window_left = window};
    const AttentionOptions here{.causal = true, .key_offset = front, .query_offset = first, .window_left = window};
    const auto check = [&](const AttentionOutput<TestType>& got, const auto& exact) {
      REQUIRE(distance(got.values.bottomRows(40), exact.values) < unit);
      REQUIRE(distance(got.log_sum_exp.tail(40), exact.log_sum_exp) < unit);
    };
    const Matrix<TestType> own = q.bottomRows(40), keys = k.bottomRows(60), tokens = v.bottomRows(60);
    check(attention(q, k, v, AlibiBias{0.3}, near), dense_attention<Wide<TestType>>(own, keys, tokens, AlibiBias{0.3}, here));
    check(attention(q, k, v, MeanMask(hashes), near), dense_attention<Wide<TestType>>(own, keys, tokens, MeanOfMasks{hashes}, here));
    check(blockwise_attention(q, k, v, hashes, near), dense_attention<Wide<TestType>>(own, keys, tokens, MeanOfMasks{hashes}, here));
    check(blockwise_attention(q, k, v, hashes, near, Merge::mean),
          dense_mean_of_draws<Wide<TestType>>(own, keys, tokens, hashes, here));
  }
}

#ifdef MAP_NORESERVE

namespace {

/// Zeros that take no memory before they are written.
template <class T>
class SparseMemory {
 public:
  explicit SparseMemory(Index values)
      : bytes_(static_cast<std::size_t>(values) * sizeof(T)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() {
    if (*this) munmap(data_, bytes_);
  }
  /// Whether the system has so much address space to give.
  explicit operator bool() const { return data_ != MAP_FAILED; }
  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/// 3 x 3 x 3 rows of a tensor, one of whose strides is beyond 2^30 values in size, so that products with it pass 2^31.
template <class T>
struct FarTensor {
  static constexpr Index far = (Index{1} << 30) + 1024;
  std::unique_ptr<SparseMemory<T>> memory = std::make_unique<SparseMemory<T>>(2 * far + 4096);
  TensorView<T> view;

  FarTensor(Index features, std::size_t dimension, bool backwards) : view{memory->data(), 3, 3, 3, features} {
    std::array<Index, 3> strides{900, 288, 32};
    strides[dimension] = backwards ? -far : far;
    view.batch_stride = strides[0];
    view.head_stride = strides[1];
    view.token_stride = strides[2];
    if (backwards && *memory) view.data += 2 * far;
  }
  FarTensor(const Tensor<T>& from, std::size_t dimension, bool backwards)
      : FarTensor(from.view().features, dimension, backwards) {
    if (!*memory) return;
    for (Index item = 0; item < 3; ++item)
      for (Index head = 0; head < 3; ++head)
        for (Index token = 0; token < 3; ++token)
          std::copy_n(poslsh::detail::head_of(from.view(), item, head).row(token), view.features,
                      poslsh::detail::head_of(view, item, head).row(token));
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("numbers: strides whose products pass 2^31", "", Scalars) {
  const auto layer = normal_layer<TestType>({3, 3, 3, 3, 3, 16, 16}, 3);
  const Tensor<TestType> d_out = normal_tensor<TestType>(3, 3, 3, 16, 4);
  const std::vector<AlibiBias> biases{{0.5}, {0.1}, {0.02}};
  const auto expected = attend(layer, biases);
  for (std::size_t dimension = 0; dimension < 3; ++dimension)
    for (const bool backwards : {false, true}) {
      using Far = FarTensor<TestType>;
      const Far q(layer.q, dimension, backwards), k(layer.k, dimension, backwards), v(layer.v, dimension, backwards);
      const Far given(d_out, dimension, backwards);
      const Far out(16, dimension, backwards), dq(16, dimension, backwards), dk(16, dimension, backwards), dv(16, dimension, backwards);
      for (const Far* tensor : {&q, &k, &v, &given, &out, &dq, &dk, &dv})
        if (!*tensor->memory) {
          WARN("no address space for strides of 2^30");
          return;
        }
      std::vector<double> lse(27);
      multi_head_attention(q.view, k.view, v.view, out.view, biases, {}, lse.data());
      multi_head_attention_backward(q.view, k.view, v.view, out.view, lse.data(), given.view, dq.view, dk.view, dv.view, biases);
      CAPTURE(dimension, backwards);
      for (Index item = 0; item < 3; ++item)
        for (Index head = 0; head < 3; ++head) {
          const AttentionOutput<TestType> own = expected.head(item, head);
          REQUIRE(same_numbers(rows_of(out.view, item, head), own.values));
          const auto part = [&](const Tensor<TestType>& tensor) { return rows_of(tensor.view(), item, head); };
          const auto gradients = attention_backward(part(layer.q), part(layer.k), part(layer.v), own, part(d_out),
                                                    biases[static_cast<std::size_t>(head)]);
          REQUIRE(same_numbers(rows_of(dq.view, item, head), gradients.dq));
          REQUIRE(same_numbers(rows_of(dk.view, item, head), gradients.dk));
          REQUIRE(same_numbers(rows_of(dv.view, item, head), gradients.dv));
        }
    }
}

TEMPLATE_LIST_TEST_CASE("numbers: keys and values of more than 2^31 numbers", "", Scalars) {
  // Two queries see four keys each of 40000, the last ones; keys lie by columns and by rows.
  const Index n = 40000, wide = 65536, seen = 5, features = 16;
  const SparseMemory<TestType> memory(n * wide);
  if (!memory) {
    WARN("no address space for 2.6e9 numbers");
    return;
  }
  const Inputs<TestType> x = normal_inputs<TestType>(2, seen, 4, features, 5);
  const AttentionOptions options{.window_left = 3}, last{.key_offset = n - seen, .window_left = 3};
  const auto expected = attention(x.q, x.k, x.v, AlibiBias{0.2}, last);

  Eigen::Map<Matrix<TestType>, 0, Eigen::OuterStride<>> v(memory.data(), n, features, Eigen::OuterStride<>(wide));
  v.bottomRows(seen) = x.v;
  Eigen::Map<Matrix<TestType>, 0, Eigen::OuterStride<>> k(memory.data() + features, n, 4, Eigen::OuterStride<>(wide));
  k.bottomRows(seen) = x.k;
  const auto check = [&](const AttentionOutput<TestType>& got) {
    REQUIRE(distance(got.values.leftCols(features), expected.values) < 8 * epsilon<TestType>);
    REQUIRE(distance(got.log_sum_exp, expected.log_sum_exp) < 8 * epsilon<TestType>);
  };
  check(attention(x.q, k, v, AlibiBias{0.2}, options));

  const Index far = 850000000;
  using ByColumns = Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic>;
  Eigen::Map<ByColumns, 0, Eigen::OuterStride<>> columns(memory.data() + 8 * wide, n, 4, Eigen::OuterStride<>(far));
  columns.bottomRows(seen) = x.k;
  check(attention(x.q, columns, v, AlibiBias{0.2}, options));

  // Every feature of a row: 2.6e9 values, of which five rows are ever touched.
  const Eigen::Map<const Matrix<TestType>> all(memory.data(), n, wide);
  check(attention(x.q, k, all, AlibiBias{0.2}, options));
}

#endif

}  // namespace sizes_test
