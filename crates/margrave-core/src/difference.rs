//! The difference between two texts, as `diff -u` writes it.

/// Lines around a change that help to find it.
const CONTEXT: usize = 3;
/// Beyond this the comparison would cost more than it tells; then the whole text is shown as replaced.
const CELLS_MAX: usize = 4_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Same,
    Gone,
    New,
}

/// Lines of the difference; `before` is nothing when there is no such file yet, and `after` when it went.
pub fn unified(path: &str, before: Option<&str>, after: Option<&str>) -> Vec<String> {
    let old: Vec<&str> = before.unwrap_or_default().lines().collect();
    let new: Vec<&str> = after.unwrap_or_default().lines().collect();
    let side = |letter: char, there: bool| match there {
        true => format!("{letter}/{path}"),
        false => "/dev/null".to_owned(),
    };
    let mut lines =
        vec![format!("--- {}", side('a', before.is_some())), format!("+++ {}", side('b', after.is_some()))];
    let steps = steps(&old, &new);
    let near = |index: usize| {
        let range = index.saturating_sub(CONTEXT)..(index + CONTEXT + 1).min(steps.len());
        steps[range].iter().any(|step| *step != Step::Same)
    };
    let (mut at_old, mut at_new, mut index) = (0, 0, 0);
    while index < steps.len() {
        if !near(index) {
            (at_old, at_new, index) = (at_old + 1, at_new + 1, index + 1);
            continue;
        }
        let (from_old, from_new) = (at_old, at_new);
        let mut hunk = Vec::new();
        while index < steps.len() && near(index) {
            match steps[index] {
                Step::Same => hunk.push(format!(" {}", old[at_old])),
                Step::Gone => hunk.push(format!("-{}", old[at_old])),
                Step::New => hunk.push(format!("+{}", new[at_new])),
            }
            at_old += usize::from(steps[index] != Step::New);
            at_new += usize::from(steps[index] != Step::Gone);
            index += 1;
        }
        // By custom, nothing begins at line 0.
        let span = |from: usize, to: usize| match to - from {
            0 => format!("{from},0"),
            1 => format!("{}", from + 1),
            count => format!("{},{count}", from + 1),
        };
        lines.push(format!("@@ -{} +{} @@", span(from_old, at_old), span(from_new, at_new)));
        lines.extend(hunk);
    }
    lines
}

/// The shortest way from one to the other, by their longest common part.
fn steps(old: &[&str], new: &[&str]) -> Vec<Step> {
    let width = new.len() + 1;
    if (old.len() + 1).saturating_mul(width) > CELLS_MAX {
        return [vec![Step::Gone; old.len()], vec![Step::New; new.len()]].concat();
    }
    let mut common = vec![0u32; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = if old[i] == new[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut steps = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            steps.push(Step::Same);
            (i, j) = (i + 1, j + 1);
        } else if j == new.len()
            || (i < old.len() && common[(i + 1) * width + j] >= common[i * width + j + 1])
        {
            steps.push(Step::Gone);
            i += 1;
        } else {
            steps.push(Step::New);
            j += 1;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_stands_between_those_around_it() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let after = "1\n2\n3\n4\nfive\n6\n7\n8\n9\nten\n";
        let expected = [
            "--- a/x",
            "+++ b/x",
            "@@ -2,8 +2,9 @@",
            " 2",
            " 3",
            " 4",
            "-5",
            "+five",
            " 6",
            " 7",
            " 8",
            " 9",
            "+ten",
        ];
        assert_eq!(unified("x", Some(before), Some(after)), expected);
    }

    #[test]
    fn a_new_file_comes_from_nothing() {
        assert_eq!(
            unified("x", None, Some("a\nb\n")),
            ["--- /dev/null", "+++ b/x", "@@ -0,0 +1,2 @@", "+a", "+b"]
        );
    }

    #[test]
    fn changes_far_apart_stand_apart() {
        let before: String = (0..30).map(|n| format!("{n}\n")).collect();
        let after = before.replace("2\n3\n", "2\nx\n3\n").replace("25\n", "");
        let lines = unified("x", Some(&before), Some(&after));
        assert_eq!(lines.iter().filter(|line| line.starts_with("@@")).count(), 2, "{lines:?}");
    }
}
