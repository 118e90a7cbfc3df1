"""ropekit-report: merges results of any number of machines into one page and a Markdown summary."""

import argparse
import sys
from pathlib import Path

from ropekit_bench import results
from ropekit_bench.compact import compact
from ropekit_bench.report import page, summary
from ropekit_bench.report.model import machines


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="ropekit-report", description=__doc__)
    parser.add_argument("results", nargs="+", help="files of `ropekit bench --output` and ropekit-peers")
    parser.add_argument(
        "--compact",
        metavar="FOLDER",
        help="write into a folder what reports show of each file, and end",
    )
    parser.add_argument("--html", help="write the page to a file")
    parser.add_argument("--markdown", help="write the summary to a file [standard output]")
    options = parser.parse_args(arguments)
    try:
        if options.compact:
            for path in options.results:
                results.write(compact(results.load(path)), Path(options.compact) / Path(path).name)
            return 0
        found = machines([results.read(path) for path in options.results])
        if not found:
            raise results.ResultsError("no file holds results of a device")
        if options.html:
            Path(options.html).write_text(page.render(found), encoding="utf-8")
        text = summary.summary(found)
        if options.markdown:
            Path(options.markdown).write_text(text, encoding="utf-8")
        else:
            print(text)
    except (results.ResultsError, OSError) as error:
        print(f"ropekit-report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
