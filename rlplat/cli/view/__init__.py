"""Commands that show runs: a list, a browser, a tracker."""
