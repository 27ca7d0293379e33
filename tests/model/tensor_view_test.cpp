// SPDX-License-Identifier: MIT
#include "poslsh/model/tensor_view.hpp"

#include "support/catch.hpp"

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace tensor_view_test {

using Catch::Matchers::ContainsSubstring;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::TensorView;
using poslsh::detail::check_output;
using poslsh::detail::check_tensor;
using poslsh::detail::head_of;
using poslsh::detail::offsets;
using poslsh::detail::overlap;

namespace {

constexpr Index span_limit = Index{1} << 58, size_limit = Index{1} << 52;

/// Where element (b, h, t, f) is expected of a buffer that holds 0, 1, 2, ...
template <class T>
T at(const TensorView<T>& tensor, Index item, Index head, Index token, Index feature) {
  return head_of(tensor, item, head)(token, feature);
}

std::vector<int> counting(int count) {
  std::vector<int> values;
  for (int i = 0; i < count; ++i) values.push_back(i);
  return values;
}

/// The message of the Error that a check of the tensor throws; "no error" if it throws none.
std::string message(const TensorView<float>& tensor, bool output = false) {
  try {
    output ? check_output(tensor, "x") : check_tensor(tensor, "x");
  } catch (const poslsh::Error& error) {
    return error.what();
  }
  return "no error";
}

float memory = 0;  // for views whose elements are never touched

/// A view of 2 x 3 x 5 x 7 values, changed.
TensorView<float> changed(const std::function<void(TensorView<float>&)>& change) {
  TensorView<float> tensor = TensorView<float>::heads_first(&memory, 2, 3, 5, 7);
  change(tensor);
  return tensor;
}

}  // namespace

TEST_CASE("Packed buffers in both orders") {
  std::vector<int> values = counting(2 * 3 * 4 * 5);
  const auto heads_first = TensorView<int>::heads_first(values.data(), 2, 3, 4, 5);
  const auto tokens_first = TensorView<int>::tokens_first(values.data(), 2, 4, 3, 5);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 3; ++h)
      for (Index t = 0; t < 4; ++t)
        for (Index f = 0; f < 5; ++f) {
          REQUIRE(at(heads_first, b, h, t, f) == ((b * 3 + h) * 4 + t) * 5 + f);
          REQUIRE(at(tokens_first, b, h, t, f) == ((b * 4 + t) * 3 + h) * 5 + f);
        }
  for (const auto& view : {heads_first, tokens_first}) {
    REQUIRE(view.batch == 2);
    REQUIRE(view.heads == 3);
    REQUIRE(view.tokens == 4);
    REQUIRE(view.features == 5);
  }
}

TEST_CASE("Any strides, negative and 0 too") {
  std::vector<int> values = counting(100);
  const TensorView<int> view{values.data() + 50, 2, 3, 2, 4, -40, 6, 0};
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 3; ++h)
      for (Index t = 0; t < 2; ++t)
        for (Index f = 0; f < 4; ++f) REQUIRE(at(view, b, h, t, f) == 50 - 40 * b + 6 * h + f);
}

TEST_CASE("A view converts to one of constants, not back") {
  STATIC_REQUIRE(std::is_convertible_v<TensorView<float>, TensorView<const float>>);
  STATIC_REQUIRE(!std::is_convertible_v<TensorView<const float>, TensorView<float>>);
  STATIC_REQUIRE(!std::is_convertible_v<TensorView<float>, TensorView<const double>>);
  STATIC_REQUIRE(std::is_trivially_copyable_v<TensorView<float>>);
  std::vector<int> values = counting(100);
  const TensorView<int> view{values.data() + 50, 1, 2, 3, 4, 5, -6, 7};
  const TensorView<const int> constant = view;
  REQUIRE(constant.data == view.data);
  for (const auto& [a, b] :
       {std::pair{constant.batch, view.batch}, std::pair{constant.heads, view.heads},
        std::pair{constant.tokens, view.tokens}, std::pair{constant.features, view.features},
        std::pair{constant.batch_stride, view.batch_stride}, std::pair{constant.head_stride, view.head_stride},
        std::pair{constant.token_stride, view.token_stride}})
    REQUIRE(a == b);
}

TEST_CASE("A view is empty where any of its sizes is 0") {
  REQUIRE(TensorView<float>{}.empty());
  REQUIRE_FALSE(changed([](auto&) {}).empty());
  REQUIRE(changed([](auto& x) { x.batch = 0; }).empty());
  REQUIRE(changed([](auto& x) { x.heads = 0; }).empty());
  REQUIRE(changed([](auto& x) { x.tokens = 0; }).empty());
  REQUIRE(changed([](auto& x) { x.features = 0; }).empty());
}

TEST_CASE("A head of an empty view keeps its shape and moves no pointer") {
  const TensorView<float> none{nullptr, 2, 3, 0, 7, 100, 10, 1};
  const auto head = head_of(none, 1, 2);
  REQUIRE(head.data == nullptr);
  REQUIRE(head.rows == 0);
  REQUIRE(head.cols == 7);
  const TensorView<float> featureless{nullptr, 2, 3, 5, 0, 100, 10, 4};
  REQUIRE(head_of(featureless, 1, 2).data == nullptr);
  REQUIRE(head_of(featureless, 1, 2).rows == 5);
  REQUIRE(head_of(featureless, 1, 2).row(4) == nullptr);
}

TEST_CASE("The offsets a view reaches, from the lowest to one past the highest") {
  REQUIRE(offsets(TensorView<float>{&memory, 2, 3, 5, 7, 1000, 100, 10}) == KeyRange{0, 1000 + 200 + 40 + 7});
  REQUIRE(offsets(TensorView<float>{&memory, 2, 3, 5, 7, -1000, 100, 10}) == KeyRange{-1000, 200 + 40 + 7});
  REQUIRE(offsets(TensorView<float>{&memory, 2, 3, 5, 7, 1000, -100, -10}) == KeyRange{-240, 1007});
  REQUIRE(offsets(TensorView<float>{&memory, 2, 3, 5, 7, 0, 0, 0}) == KeyRange{0, 7});
  REQUIRE(offsets(TensorView<float>{&memory, 1, 1, 1, 7, 1000, 100, 10}) == KeyRange{0, 7});
  REQUIRE(offsets(TensorView<float>{&memory, 2, 0, 5, 7, 1000, 100, 10}).empty());
}

TEST_CASE("Views overlap where their extents meet, of any types") {
  std::vector<float> values(100);
  // Two heads of two tokens: values 0 .. 31 from the place given.
  const auto view = [&](Index place) { return TensorView<float>{values.data() + place, 1, 2, 2, 8, 0, 16, 8}; };
  REQUIRE(overlap(view(0), view(0)));
  REQUIRE(overlap(view(0), view(31)));
  REQUIRE(overlap(view(31), view(0)));
  REQUIRE_FALSE(overlap(view(0), view(32)));
  REQUIRE_FALSE(overlap(view(32), view(0)));

  TensorView<const float> backwards = view(40);
  backwards.token_stride = -8;  // values 32 .. 63
  REQUIRE_FALSE(overlap(backwards, view(0)));
  REQUIRE(overlap(backwards, view(1)));
  REQUIRE(overlap(backwards, view(63)));
  REQUIRE_FALSE(overlap(backwards, view(64)));

  const TensorView<double> doubles{reinterpret_cast<double*>(values.data() + 32), 1, 1, 1, 4, 0, 0, 0};
  REQUIRE(overlap(doubles, view(39)));
  REQUIRE_FALSE(overlap(doubles, view(40)));

  TensorView<float> none = view(0);
  none.features = 0;
  REQUIRE_FALSE(overlap(none, view(0)));
  REQUIRE_FALSE(overlap(view(0), none));
}

TEST_CASE("A view is checked: its sizes, its memory, its strides") {
  REQUIRE(message(changed([](auto&) {})) == "no error");
  REQUIRE(message(TensorView<float>{}) == "no error");
  struct Size {
    std::string name;
    Index TensorView<float>::*size;
  };
  for (const Size& size :
       {Size{"batch", &TensorView<float>::batch}, Size{"heads", &TensorView<float>::heads},
        Size{"tokens", &TensorView<float>::tokens}, Size{"features", &TensorView<float>::features}})
    for (const Index bad : {Index{-1}, size_limit + 1, std::numeric_limits<Index>::min()})
      REQUIRE_THAT(message(changed([&](auto& x) { x.*size.size = bad; })),
                   ContainsSubstring("poslsh: " + size.name + " of x is " + std::to_string(bad) +
                                     "; it must be between 0 and 2^52"));
  REQUIRE_THAT(message(changed([](auto& x) { x.data = nullptr; })),
               ContainsSubstring("poslsh: data of x is null; it must be memory, since the tensor has elements"));
  REQUIRE(message(changed([](auto& x) {
            x.data = nullptr;
            x.features = 0;
          })) == "no error");
}

TEST_CASE("Strides may be anything whose offsets stay within 2^60") {
  struct Stride {
    std::string name;
    Index TensorView<float>::*stride;
    Index TensorView<float>::*count;
  };
  for (const Stride& stride :
       {Stride{"batch_stride", &TensorView<float>::batch_stride, &TensorView<float>::batch},
        Stride{"head_stride", &TensorView<float>::head_stride, &TensorView<float>::heads},
        Stride{"token_stride", &TensorView<float>::token_stride, &TensorView<float>::tokens}}) {
    const auto with = [&](Index value, Index count) {
      return changed([&](auto& x) {
        x.*stride.stride = value;
        x.*stride.count = count;
      });
    };
    for (const Index good : {Index{0}, Index{-1}, span_limit / 4, -span_limit / 4})
      REQUIRE(message(with(good, 5)) == "no error");
    for (const Index bad : {span_limit / 3, -span_limit / 3, std::numeric_limits<Index>::min()})
      REQUIRE_THAT(message(with(bad, 5)),
                   ContainsSubstring("poslsh: " + stride.name + " of x is " + std::to_string(bad) +
                                     "; it must be so small that all offsets are within 2^60"));
    // Of one element, or none at all, the stride does not matter.
    REQUIRE(message(with(std::numeric_limits<Index>::min(), 1)) == "no error");
    REQUIRE(message(with(std::numeric_limits<Index>::max(), 1), true) == "no error");
    REQUIRE(message(with(std::numeric_limits<Index>::max(), 0), true) == "no error");
  }
}

TEST_CASE("The rows of an output must not lie on one another") {
  for (const auto& [name, stride] : {std::pair{"batch_stride", &TensorView<float>::batch_stride},
                                     std::pair{"head_stride", &TensorView<float>::head_stride},
                                     std::pair{"token_stride", &TensorView<float>::token_stride}}) {
    const auto with = [stride = stride](Index value) { return changed([&](auto& x) { x.*stride = value; }); };
    for (const Index bad : {0, 1, 6, -6}) {
      REQUIRE_THAT(message(with(bad), true),
                   ContainsSubstring(std::string("poslsh: ") + name + " of x is " + std::to_string(bad) +
                                     "; it must be at least 7, so that rows do not overlap"));
      REQUIRE(message(with(bad)) == "no error");
    }
    REQUIRE(message(with(-1000), true) == "no error");
    REQUIRE(message(with(1000), true) == "no error");
  }
  // Each is at least a row, but two dimensions run into one another.
  const auto strides = [](Index batch, Index head, Index token) {
    return changed([&](auto& x) {
      x = {x.data, 2, 3, 5, 7, batch, head, token};
    });
  };
  REQUIRE(message(strides(105, 35, 7), true) == "no error");
  REQUIRE(message(strides(105, 7, 21), true) == "no error");
  REQUIRE(message(strides(7, 14, 42), true) == "no error");
  REQUIRE(message(strides(-105, -35, -7), true) == "no error");
  REQUIRE_THAT(message(strides(105, 34, 7), true), ContainsSubstring("head_stride of x is 34; it must be at least 35"));
  REQUIRE_THAT(message(strides(104, 35, 7), true), ContainsSubstring("batch_stride of x is 104; it must be at least 105"));
  REQUIRE_THAT(message(strides(35, 35, 7), true), ContainsSubstring("batch_stride of x is 35; it must be at least 105"));
  REQUIRE_THAT(message(strides(-104, -35, -7), true), ContainsSubstring("batch_stride of x is -104"));
  REQUIRE_THAT(message(changed([](auto& x) { x.data = nullptr; }), true), ContainsSubstring("data of x is null"));
}

}  // namespace tensor_view_test
