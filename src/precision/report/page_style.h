#pragma once

#include <string_view>

namespace imago::precision {

/// The style sheet of a page: light and dark, wide and narrow, screen and paper.
std::string_view page_style() noexcept;

/// Sorts tables of class "sortable" by a click on a heading. The page is whole without it.
std::string_view page_script() noexcept;

}  // namespace imago::precision
