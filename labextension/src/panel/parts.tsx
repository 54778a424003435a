// The lower parts of a run: warnings, ranks, device-to-host reads, the note on a rehearsal.

import * as React from 'react';
import { grouped, seconds, short } from '../format';
import { RankTable, Read, RehearsalNote, NoticeText, Transfer } from '../types';
import { Facts } from './head';
import { Chip, Code, Notes, Place, Section, toneOf, useTrans, Worded } from './pieces';
import { Table } from './table';

const READS = 20;

export const Warnings = React.memo(function Warnings(props: {
  notices: NoticeText[];
}): JSX.Element | null {
  const trans = useTrans();
  if (props.notices.length === 0) {
    return null;
  }
  const warns = props.notices.some(each => each.state !== '');
  const title = warns ? trans.__('Warnings') : trans.__('Notes');
  return (
    <Section name="warnings" title={title}>
      <ul className="tpu-List">
        {props.notices.map((each, at) => (
          <li key={at}>
            <Chip tone={toneOf(each.state)} symbol={false}>
              {each.word}
            </Chip>{' '}
            <Worded>{each.text}</Worded>
          </li>
        ))}
      </ul>
    </Section>
  );
});

export const Ranks = React.memo(function Ranks(props: { ranks: RankTable }): JSX.Element {
  const trans = useTrans();
  const { columns, rows, notes } = props.ranks;
  return (
    <Section
      name="ranks"
      title={trans.__('Ranks')}
      aside={<span className="tpu-Small">{rows.length || ''}</span>}
    >
      {rows.length > 0 && (
        <Table label={trans.__('Ranks')} columns={columns} rows={rows} tight={true} />
      )}
      <Notes lines={notes} />
    </Section>
  );
});

/** Those that split a step's graph first. */
export const Reads = React.memo(function Reads(props: {
  transfers: Transfer[];
  reads: Read[];
}): JSX.Element | null {
  const trans = useTrans();
  const all = [...props.transfers, ...props.reads];
  if (all.length === 0) {
    return null;
  }
  return (
    <Section
      name="reads"
      title={trans.__('Device-to-host reads')}
      aside={
        props.transfers.length > 0 ? (
          <Chip tone="warning">
            {trans._n('%1 splits the graph', '%1 split the graph', props.transfers.length)}
          </Chip>
        ) : null
      }
    >
      <ul className="tpu-List">
        {all.slice(0, READS).map((one, at) => (
          <ReadItem key={at} one={one} />
        ))}
      </ul>
      {all.length > READS && (
        <p className="tpu-Small">{trans.__('and %1 more lines', all.length - READS)}</p>
      )}
    </Section>
  );
});

function ReadItem({ one }: { one: Transfer | Read }): JSX.Element {
  const trans = useTrans();
  const splits = 'fix' in one;
  const times = trans._n('%2 read', '%2 reads', one.count, grouped(one.count));
  const code = short(one.code || one.site.code, 120);
  return (
    <li>
      {splits ? <Chip tone="warning">{times}</Chip> : <b>{times}</b>} <Place site={one.site} />{' '}
      {one.seconds ? <span className="tpu-Small">{seconds(one.seconds)}</span> : null}
      {code && (
        <div>
          <Code>{code}</Code>
        </div>
      )}
      <div>
        {splits ? <Worded>{one.text || trans.__("Splits the step's graph.")}</Worded> : null}
        {!splits && trans.__('Device-to-host sync after the step.')}
      </div>
      {splits && one.fix && (
        <div>
          <b>{trans.__('Fix:')}</b> <Worded>{one.fix}</Worded>
        </div>
      )}
    </li>
  );
}

export const Likeness = React.memo(function Likeness(props: {
  likeness: RehearsalNote | null;
}): JSX.Element | null {
  const trans = useTrans();
  if (props.likeness === null) {
    return null;
  }
  return (
    <Section name="rehearsal" title={trans.__('Rehearsal on CPU')} closed={true}>
      <p className="tpu-Line">{props.likeness.short}</p>
      <Facts facts={props.likeness.facts} />
    </Section>
  );
});
