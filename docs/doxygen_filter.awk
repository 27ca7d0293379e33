# What Doxygen reads in place of a header or a page: awk -v root=FOLDER -f doxygen_filter.awk FILE
#
# Headers: names without the inline namespace of the vector unit. Pages: headings get the anchors that GitHub gives them,
# and links to pages, headings and headers become references. What is no part of the HTML keeps its name, without a link.

function slug(heading) {
  while (match(heading, /\]\([^)]*\)/)) heading = substr(heading, 1, RSTART - 1) substr(heading, RSTART + RLENGTH)
  heading = tolower(heading)
  gsub(/[][!"#$%&\047()*+,.\/:;<=>?@\\^`{|}~]/, "", heading)
  gsub(/ /, "-", heading)
  return heading
}
# A path from the root on, without "..".
function resolve(path) {
  path = directory path
  while (match(path, /[^\/]+\/\.\.\//)) path = substr(path, 1, RSTART - 1) substr(path, RSTART + RLENGTH)
  return path
}
function anchor(path, name) {
  path = path "-" name
  gsub(/[^A-Za-z0-9]/, "_", path)
  return path
}
# [text](target) as Doxygen should see it.
function link(text, target, path, name) {
  if (target ~ /^[a-z]+:/) return "[" text "](" target ")"
  path = target
  name = ""
  if (match(path, /#/)) {
    name = substr(path, RSTART + 1)
    path = substr(path, 1, RSTART - 1)
  }
  path = path == "" ? page : resolve(path)
  if (path ~ /^include\//) return "[" text "](@ref " substr(path, 9) ")"
  if (path ~ /\.md$/) return name == "" ? "[" text "](" target ")" : "[" text "](@ref " anchor(path, name) ")"
  if (path ~ /^docs\/(data|figures)\//) return "[" text "](" target ")"
  return text
}

FNR == 1 {
  page = FILENAME
  if (index(page, root "/") == 1) page = substr(page, length(root) + 2)
  directory = page
  sub(/[^\/]*$/, "", directory)
  is_page = page ~ /\.md$/
}
!is_page { sub(/::inline POSLSH_SIMD/, ""); print; next }
/^[ \t]*```/ { code = !code; print; next }
code { print; next }
/^##+ / {
  name = slug(substr($0, index($0, " ") + 1))
  print $0 " {#" anchor(page, name (seen[name]++ ? "-" seen[name] - 1 : "")) "}"
  next
}
{
  gsub(/ @/, " \\@")  # not a command
  done = ""
  while (match($0, /\[[^][]*\]\([^)]*\)/)) {
    found = substr($0, RSTART, RLENGTH)
    before = substr($0, 1, RSTART - 1)
    $0 = substr($0, RSTART + RLENGTH)
    middle = index(found, "](")
    if (before ~ /!$/)
      done = done before found
    else
      done = done before link(substr(found, 2, middle - 2), substr(found, middle + 2, length(found) - middle - 2))
  }
  print done $0
}
