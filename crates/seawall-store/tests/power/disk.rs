//! Possible contents of a disk after a power cut: each file as of its last sync, and each sector written since then in any state that it
//! had since.

use crate::recording::{Event, Op};
use seawall_core::rng::Rng;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

/// The unit that a disk writes atomically.
const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// Content of a file. A missing page is zeros, as is everything beyond the length.
#[derive(Clone, Default)]
pub(crate) struct Image {
    length: u64,
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

impl Image {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut image = Self::default();
        image.write(0, bytes);
        image
    }

    /// Calls `change` for each page of a range, with the range within the page and its offset in the whole range.
    fn each_page(at: u64, length: usize, mut change: impl FnMut(usize, std::ops::Range<usize>, usize)) {
        let mut done = 0;
        while done < length {
            let position = index(at) + done;
            let (page, from) = (position / PAGE, position % PAGE);
            let many = (PAGE - from).min(length - done);
            change(page, from..from + many, done);
            done += many;
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        self.length = self.length.max(at + data.len() as u64);
        self.pages.resize(index(self.length).div_ceil(PAGE), None);
        Self::each_page(at, data.len(), |page, within, from| {
            let page = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE]));
            let many = within.len();
            Arc::make_mut(page)[within].copy_from_slice(&data[from..from + many]);
        });
    }

    fn zero(&mut self, at: u64, length: u64) {
        Self::each_page(at, index(length), |page, within, _| {
            if let Some(found) = self.pages.get_mut(page).filter(|page| page.is_some()) {
                match found {
                    Some(page) if within.len() < PAGE => Arc::make_mut(page)[within].fill(0),
                    whole => *whole = None,
                }
            }
        });
    }

    fn cut(&mut self, length: u64) {
        if length < self.length {
            self.zero(length, self.length - length);
        }
        self.length = length;
        self.pages.resize(index(length).div_ceil(PAGE), None);
    }

    fn apply(&mut self, op: &Op<'_>) {
        match op {
            Op::Write { at, data } => self.write(*at, data),
            Op::Zeros { at, length } => {
                self.cut(self.length.max(at + length));
                self.zero(*at, *length);
            }
            Op::Truncate(length) => self.cut(*length),
        }
    }

    fn sector(&self, number: usize) -> [u8; SECTOR] {
        let at = number * SECTOR;
        match self.pages.get(at / PAGE) {
            Some(Some(page)) => page[at % PAGE..at % PAGE + SECTOR].try_into().unwrap(),
            _ => [0; SECTOR],
        }
    }

    /// Writes the content to a file.
    pub(crate) fn store(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(self.length).unwrap();
        let mut run = Vec::new();
        for (number, page) in self.pages.iter().enumerate().chain([(self.pages.len(), &None)]) {
            if let Some(page) = page {
                run.extend_from_slice(&page[..]);
            } else if !run.is_empty() {
                let at = number * PAGE - run.len();
                run.truncate(index(self.length) - at);
                file.write_all_at(&run, at as u64).unwrap();
                run.clear();
            }
        }
    }

    pub(crate) fn same_as(&self, other: &Self) -> bool {
        let pages = |image: &Self, page: usize| image.pages.get(page).cloned().flatten();
        let zeros = |page: &Arc<[u8; PAGE]>| page.iter().all(|byte| *byte == 0);
        self.length == other.length
            && (0..self.pages.len()).all(|page| match (pages(self, page), pages(other, page)) {
                (Some(one), Some(two)) => one == two,
                (Some(one), None) | (None, Some(one)) => zeros(&one),
                (None, None) => true,
            })
    }
}

/// The fate of unsynced writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// All are lost.
    All,
    /// None are lost.
    Nothing,
    /// Each write or rename survives with this probability.
    Writes(f64),
    /// Each sector survives with this probability, and otherwise has an earlier state since the sync.
    Sectors(f64),
}

impl Loss {
    fn draw(rng: &mut Rng) -> Self {
        const CHANCES: [f64; 4] = [0.05, 0.5, 0.9, 0.99];
        let chance = CHANCES[index(rng.up_to(3))];
        match rng.up_to(5) {
            0 => Self::All,
            1 => Self::Nothing,
            2 | 3 => Self::Writes(chance),
            _ => Self::Sectors(chance),
        }
    }
}

/// A file under any name.
#[derive(Default)]
struct Held<'a> {
    synced: Image,
    pending: Vec<Op<'a>>,
    /// Number of synced operations.
    taken: usize,
}

impl<'a> Held<'a> {
    /// Marks operations up to this one as on disk.
    fn sync(&mut self, mark: usize) {
        for op in self.pending.drain(..mark.saturating_sub(self.taken)) {
            self.synced.apply(&op);
            self.taken += 1;
        }
    }

    fn after(&self, loss: Loss, rng: &mut Rng) -> Image {
        let mut image = self.synced.clone();
        match loss {
            Loss::All => {}
            Loss::Nothing => self.pending.iter().for_each(|op| image.apply(op)),
            Loss::Writes(chance) => {
                let kept: Vec<bool> = self.pending.iter().map(|_| rng.unit() < chance).collect();
                let length = self.length(|op| kept[op]);
                self.compose(&mut image, |touched| touched.iter().rposition(|op| kept[*op]));
                image.cut(length);
            }
            Loss::Sectors(chance) => {
                let last = index(rng.up_to(self.pending.len() as u64));
                let length = self.length(|op| op < last);
                self.compose(&mut image, |touched| match rng.unit() < chance {
                    true => Some(touched.len() - 1),
                    false => index(rng.up_to(touched.len() as u64)).checked_sub(1),
                });
                image.cut(length);
            }
        }
        image
    }

    /// Returns the length of the file after these operations.
    fn length(&self, counts: impl Fn(usize) -> bool) -> u64 {
        self.pending.iter().enumerate().filter(|(number, _)| counts(*number)).fold(self.synced.length, |length, (_, op)| match op {
            Op::Write { at, data } => length.max(at + data.len() as u64),
            Op::Zeros { at, length: many } => length.max(at + many),
            Op::Truncate(length) => *length,
        })
    }

    /// Gives each written sector its state after one of the operations on it, chosen by `choose`; `None` means the synced state.
    fn compose(&self, image: &mut Image, mut choose: impl FnMut(&[usize]) -> Option<usize>) {
        let mut touched: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut longest = self.synced.length;
        for (number, op) in self.pending.iter().enumerate() {
            let (from, to) = match op {
                Op::Write { at, data } => (*at, at + data.len() as u64),
                Op::Zeros { at, length } => (*at, at + length),
                Op::Truncate(length) => (*length, longest.max(*length)),
            };
            longest = longest.max(to);
            for sector in index(from) / SECTOR..index(to).div_ceil(SECTOR) {
                touched.entry(sector).or_default().push(number);
            }
        }
        for (sector, touched) in touched {
            let Some(last) = choose(&touched) else { continue };
            let mut state = self.synced.sector(sector);
            for op in &touched[..=last] {
                overlay(&mut state, sector * SECTOR, &self.pending[*op]);
            }
            image.write((sector * SECTOR) as u64, &state);
        }
    }
}

/// Applies an operation to the sector at this offset.
fn overlay(state: &mut [u8; SECTOR], begins: usize, op: &Op<'_>) {
    let clip = |at: u64, length: usize| {
        let (from, to) = (index(at).max(begins), (index(at) + length).min(begins + SECTOR));
        (from - begins..to - begins, from - index(at))
    };
    match op {
        Op::Write { at, data } => {
            let (within, from) = clip(*at, data.len());
            let many = within.len();
            state[within].copy_from_slice(&data[from..from + many]);
        }
        Op::Zeros { at, length } => state[clip(*at, index(*length)).0].fill(0),
        Op::Truncate(length) => state[index(*length).max(begins) - begins..].fill(0),
    }
}

enum Change {
    Create(String, usize),
    Unlink(String),
    Rename(String, String),
}

type Names = BTreeMap<String, usize>;

fn rename(names: &mut Names, change: &Change) {
    match change {
        Change::Create(name, file) => drop(names.insert(name.clone(), *file)),
        Change::Unlink(name) => drop(names.remove(name)),
        Change::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
    }
}

/// One folder on a disk, at some point of a recording.
#[derive(Default)]
pub(crate) struct Disk<'a> {
    files: Vec<Held<'a>>,
    numbers: HashMap<u64, usize>,
    names: Names,
    changes: Vec<Change>,
    /// Number of synced renames.
    taken: usize,
    /// Started syncs by thread and file, with the operations that they cover.
    syncs: HashMap<(u32, Option<u64>), usize>,
}

impl<'a> Disk<'a> {
    pub(crate) fn apply(&mut self, event: &Event<'a>) {
        match event {
            Event::Create { name, file } => {
                // An inode number is reused once its file is gone.
                self.numbers.insert(*file, self.files.len());
                self.changes.push(Change::Create((*name).to_owned(), self.files.len()));
                self.files.push(Held::default());
            }
            Event::Unlink(name) => self.changes.push(Change::Unlink((*name).to_owned())),
            Event::Rename(from, to) => self.changes.push(Change::Rename((*from).to_owned(), (*to).to_owned())),
            Event::Change { file, op } => self.file(*file).pending.push(op.clone()),
            Event::SyncBegins { thread, file: Some(file) } => {
                let held = self.file(*file);
                let mark = held.taken + held.pending.len();
                self.syncs.insert((*thread, Some(*file)), mark);
            }
            Event::SyncBegins { thread, file: None } => drop(self.syncs.insert((*thread, None), self.taken + self.changes.len())),
            Event::SyncEnds { thread, file } => {
                let mark = self.syncs.remove(&(*thread, *file)).expect("it has begun");
                match file {
                    Some(file) => self.file(*file).sync(mark),
                    None => self.sync_names(mark),
                }
            }
        }
    }

    fn file(&mut self, number: u64) -> &mut Held<'a> {
        let file = self.numbers.get(&number).expect("every file is made while it is recorded");
        &mut self.files[*file]
    }

    fn sync_names(&mut self, mark: usize) {
        for change in self.changes.drain(..mark.saturating_sub(self.taken)) {
            rename(&mut self.names, &change);
            self.taken += 1;
        }
    }

    /// Returns the files after a power cut.
    pub(crate) fn lose(&self, rng: &mut Rng) -> BTreeMap<String, Image> {
        // Half of the time all files share one fate.
        let common = Loss::draw(rng);
        let alike = rng.unit() < 0.5;
        let draw = |rng: &mut Rng| if alike { common } else { Loss::draw(rng) };
        let (mut names, loss) = (self.names.clone(), draw(rng));
        for change in &self.changes {
            let kept = match loss {
                Loss::All => false,
                Loss::Nothing => true,
                Loss::Writes(chance) | Loss::Sectors(chance) => rng.unit() < chance,
            };
            if kept {
                rename(&mut names, change);
            }
        }
        names.into_iter().map(|(name, file)| (name, self.files[file].after(draw(rng), rng))).collect()
    }

    /// Returns the files as a running process sees them.
    pub(crate) fn seen(&self) -> BTreeMap<String, Image> {
        let mut names = self.names.clone();
        self.changes.iter().for_each(|change| rename(&mut names, change));
        let mut rng = Rng::seeded(0);
        names.into_iter().map(|(name, file)| (name, self.files[file].after(Loss::Nothing, &mut rng))).collect()
    }
}
