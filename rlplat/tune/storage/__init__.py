"""Where a study is kept: a journal of one writer, or a database."""
