// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Pictures by gnuplot, where it is installed.

#include "output_file.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace poslsh_examples {

/// Whether pictures of this name can be made: PNG or SVG by extension.
inline bool is_picture_name(const std::filesystem::path& path) {
  return path.extension() == ".png" || path.extension() == ".svg";
}

/// Whether a PNG or SVG has its end: gnuplot does not say if the disk is full.
inline bool is_whole_picture(const std::filesystem::path& path, bool svg) {
  std::ifstream file(path, std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(file)), {});
  return content.find(svg ? "</svg>" : "IEND", content.size() - std::min<std::size_t>(content.size(), 16)) !=
         std::string::npos;
}

/// Runs a gnuplot script that draws one picture of so many pixels; terminal and output are set here.
/// \return whether the picture was made; false: gnuplot is not there
/// \throws FileError if gnuplot fails or the picture cannot be written
inline bool draw_picture(const std::filesystem::path& path, int width, int height,
                         const std::string& script) {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) return false;
  check_writable(path);  // where it cannot write, gnuplot draws on the terminal
  std::string quoted;  // gnuplot doubles a quote inside single quotes
  for (const char c : part_name(path).string()) quoted.append(c == '\'' ? 2 : 1, c);
  const std::string terminal = path.extension() == ".svg" ? "svg" : "pngcairo";
  auto* const on_broken_pipe = std::signal(SIGPIPE, SIG_IGN);  // gnuplot may stop reading: pclose tells
  std::FILE* gnuplot = popen("gnuplot 2>/dev/null", "w");
  if (gnuplot == nullptr) return false;
  std::fprintf(gnuplot, "set terminal %s size %d,%d noenhanced\nset output '%s'\n%s\nunset output\n",
               terminal.c_str(), width, height, quoted.c_str(), script.c_str());
  const int status = pclose(gnuplot);
  std::signal(SIGPIPE, on_broken_pipe);
  if (status != 0 || !is_whole_picture(part_name(path), path.extension() == ".svg")) {
    std::error_code ignored;
    std::filesystem::remove(part_name(path), ignored);
    throw FileError(path, "gnuplot could not draw it");
  }
  publish_part(path);
  return true;
}

}  // namespace poslsh_examples
