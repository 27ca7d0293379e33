// SPDX-License-Identifier: MIT
#include "activations.hpp"

#include <cmath>
#include <numbers>

#include "../support/npy.hpp"

namespace compare {
namespace {

template <class T>
auto parts_of(T& head) {
  return std::array{&head.query, &head.key, &head.value};
}

template <class T>
Activations<T> split(std::span<const T> values, Index heads, Index tokens, Index features) {
  Activations<T> activations;
  activations.heads.resize(static_cast<std::size_t>(heads));
  const T* next = values.data();
  for (std::size_t part = 0; part < 3; ++part)
    for (HeadData<T>& head : activations.heads) {
      *parts_of(head)[part] = Eigen::Map<const poslsh::Matrix<T>>(next, tokens, features);
      next += tokens * features;
    }
  return activations;
}

AnyActivations read(const std::string& file) {
  const poslsh_examples::NpyArray array = poslsh_examples::read_npy(file);
  const std::vector<std::int64_t>& shape = array.shape;
  const bool fits = shape.size() == 4 && shape[0] == 3 && shape[1] > 0 && shape[2] > 0 && shape[3] > 0;
  if (!fits)
    throw poslsh_examples::FileError(file,
                                     "has the shape " + poslsh_examples::describe_shape(shape) +
                                         "; it must be 3 (query, key, value) x heads x tokens x features");
  return std::visit(
      [&](const auto& values) -> AnyActivations {
        return split(std::span(values), shape[1], shape[2], shape[3]);
      },
      array.values);
}

/// A pure function of seed and index: Box and Muller's transform of two uniform numbers.
double unit_normal(std::uint64_t seed, std::uint64_t index) {
  constexpr std::uint64_t stream = std::uint64_t{1} << 63;  // no head draws from it
  const double radius = std::sqrt(-2 * std::log(poslsh::random_uniform(seed, stream, 2 * index)));
  return radius * std::cos(2 * std::numbers::pi * poslsh::random_uniform(seed, stream, 2 * index + 1));
}

Activations<float> generate(Index heads, Index tokens, Index features, std::uint64_t seed) {
  if (3 * heads > (Index{1} << 32) / (tokens * features))
    throw UsageError("--heads x --tokens x --head-dim is too large: at most 2^32 numbers can be generated");
  std::vector<float> values(static_cast<std::size_t>(3 * heads * tokens * features));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(unit_normal(seed, i));
  return split(std::span<const float>(values), heads, tokens, features);
}

}  // namespace

AnyActivations make_activations(const Options& options) {
  if (!options.input.empty()) return read(options.input);
  return generate(options.heads, *options.tokens, options.head_dim, options.seed);
}

void save_activations(const AnyActivations& activations, const std::string& file) {
  std::visit(
      [&]<class T>(const Activations<T>& all) {
        std::vector<T> values;
        for (std::size_t part = 0; part < 3; ++part)
          for (const HeadData<T>& head : all.heads) {
            const poslsh::Matrix<T>& matrix = *parts_of(head)[part];
            values.insert(values.end(), matrix.data(), matrix.data() + matrix.size());
          }
        const std::array<std::int64_t, 4> shape{3, static_cast<std::int64_t>(all.heads.size()), all.tokens(),
                                                all.features()};
        poslsh_examples::write_npy(file, shape, std::span<const T>(values));
      },
      activations);
}

}  // namespace compare
