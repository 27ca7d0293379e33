// SPDX-License-Identifier: MIT
#include "flags.hpp"

#include "gnuplot.hpp"
#include "output_file.hpp"
#include "validators.hpp"

#include <utility>

namespace poslsh_examples {

struct Flags::Parser {
  explicit Parser(const std::string& description) : app(description) {
    app.option_defaults()->always_capture_default();
  }

  CLI::App app;
  std::vector<const std::string*> read, written;
  std::vector<const std::vector<std::string>*> lists_read;
  std::vector<std::pair<std::string, const std::string*>> pictures;
};

Flags::Flags(const std::string& description) : parser_(std::make_unique<Parser>(description)) {}
Flags::Flags(Flags&&) noexcept = default;
Flags::~Flags() = default;

Flags& Flags::on_off(const std::string& name, bool& value, const std::string& help) {
  parser_->app.add_flag(name, value, help);
  return *this;
}

Flags& Flags::whole(const std::string& name, int& value, const std::string& help, std::int64_t low,
                    std::int64_t high) {
  parser_->app.add_option(name, value, help)->transform(poslsh_examples::whole(low, high));
  return *this;
}

Flags& Flags::whole(const std::string& name, std::int64_t& value, const std::string& help, std::int64_t low,
                    std::int64_t high) {
  parser_->app.add_option(name, value, help)->transform(poslsh_examples::whole(low, high));
  return *this;
}

Flags& Flags::whole(const std::string& name, std::vector<std::int64_t>& values, const std::string& help,
                    std::int64_t low, std::int64_t high) {
  parser_->app.add_option(name, values, help)->delimiter(',')->transform(poslsh_examples::whole(low, high));
  return *this;
}

Flags& Flags::seed(const std::string& name, std::uint64_t& value, const std::string& help) {
  parser_->app.add_option(name, value, help)->transform(a_seed());
  return *this;
}

Flags& Flags::positive(const std::string& name, double& value, const std::string& help) {
  parser_->app.add_option(name, value, help)->check(poslsh_examples::positive());
  return *this;
}

Flags& Flags::positive(const std::string& name, std::vector<double>& values, const std::string& help) {
  parser_->app.add_option(name, values, help)->delimiter(',')->check(poslsh_examples::positive());
  return *this;
}

Flags& Flags::between(const std::string& name, double& value, const std::string& help, double low,
                      double high, const std::string& requirement) {
  parser_->app.add_option(name, value, help)->check(poslsh_examples::between(low, high, requirement));
  return *this;
}

Flags& Flags::words(const std::string& name, std::vector<std::string>& values, const std::string& help,
                    const std::vector<std::string>& list) {
  parser_->app.add_option(name, values, help)->delimiter(',')->check(CLI::IsMember(list));
  return *this;
}

Flags& Flags::input(const std::string& name, std::string& value, const std::string& help) {
  parser_->app.add_option(name, value, help)->check(a_file_name());
  parser_->read.push_back(&value);
  return *this;
}

Flags& Flags::inputs(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  parser_->app.add_option(name, values, help);
  parser_->lists_read.push_back(&values);
  return *this;
}

Flags& Flags::output(const std::string& name, std::string& value, const std::string& help) {
  parser_->app.add_option(name, value, help)->check(a_file_name());
  parser_->written.push_back(&value);
  return *this;
}

Flags& Flags::picture(const std::string& name, std::string& value, const std::string& help) {
  parser_->pictures.emplace_back(name, &value);
  return output(name, value, help);
}

bool Flags::parse(int argc, char** argv) {
  try {
    parser_->app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw std::runtime_error(error.what());
    parser_->app.exit(error);
    return false;
  }
  for (const auto& [name, file] : parser_->pictures)
    if (!file->empty() && !is_picture_name(*file))
      throw std::runtime_error(name + ": " + *file + " ends neither in .png nor in .svg");
  std::vector<std::filesystem::path> inputs, outputs;
  for (const std::string* file : parser_->read) inputs.emplace_back(*file);
  for (const std::vector<std::string>* list : parser_->lists_read)
    inputs.insert(inputs.end(), list->begin(), list->end());
  for (const std::string* file : parser_->written) outputs.emplace_back(*file);
  check_outputs(outputs, inputs);
  return true;
}

}  // namespace poslsh_examples
